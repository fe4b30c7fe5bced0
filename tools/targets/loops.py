"""The loops of a function's machine code, apart: which one is the hot one, and what in it runs in every turn.

A loop is what lies between a backward jump and where it goes. Loops that overlap without being nested are one:
compilers put rare blocks behind a loop and jump back into it. Nothing is known of how often a loop runs, so the hot one
is the most deeply nested, and of several of one depth the one that computes most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


class Jumping(Protocol):
    """An instruction: where it stands, where it may jump to (None: nowhere), and whether the next one may follow."""

    @property
    def address(self) -> int: ...

    @property
    def jumps_to(self) -> int | None: ...

    @property
    def falls_through(self) -> bool: ...


@dataclass(frozen=True)
class Loop:
    """Addresses of its first and last instruction, and how many loops it lies in."""

    begin: int
    end: int
    depth: int

    def holds(self, address: int) -> bool:
        """True if the address is in the loop, its ends included."""
        return self.begin <= address <= self.end


def find_loops(code: Sequence[Jumping]) -> list[Loop]:
    """The loops of one function (backward jumps), outer ones first, each with its depth. Overlapping spans become
    one."""
    found: dict[int, int] = {}  # first address -> last
    for i in code:
        if i.jumps_to is not None and i.jumps_to <= i.address:
            found[i.jumps_to] = max(found.get(i.jumps_to, 0), i.address)
    spans: list[tuple[int, int]] = []
    for begin, end in sorted(found.items(), key=lambda span: (span[0], -span[1])):
        outer = next((span for span in spans if span[0] < begin <= span[1] < end), None)
        if outer is None:
            spans.append((begin, end))
        else:
            spans[spans.index(outer)] = (outer[0], end)
    return [Loop(a, b, sum(c <= a and b <= d and (c, d) != (a, b) for c, d in spans)) for a, b in spans]


def hot_loop(code: Sequence[Jumping], loops: Sequence[Loop], weight: Callable[[Jumping], float]) -> Loop | None:
    """The innermost loop at the greatest depth, among these the one with the most weight; None if there is no loop."""
    inner = [loop for loop in loops if not any(loop.holds(other.begin) and other != loop for other in loops)]

    def rank(loop: Loop) -> tuple[int, float]:
        """(depth, weight of the loop's instructions)."""
        return loop.depth, sum(weight(i) for i in code if loop.holds(i.address))

    return max(inner, key=rank, default=None)


def is_skipped(code: Sequence[Jumping], loop: Loop, addresses: Collection[int]) -> bool:
    """True if a turn of the loop may skip all of these addresses: there is a path through it that meets none of
    them."""
    inside = {i.address: i for i in code if loop.holds(i.address)}
    following = dict(zip(inside, [*list(inside)[1:], None], strict=True))
    waiting, seen = [loop.begin], set[int]()
    while waiting:
        at = waiting.pop()
        if at in seen or at in addresses or at not in inside:
            continue
        seen.add(at)
        here = inside[at]
        if here.jumps_to == loop.begin:
            return True
        after = following[at] if here.falls_through else None
        waiting += [place for place in (here.jumps_to, after) if place is not None]
    return False
