"""Processes that are made before somebody needs them: so many of each kind wait. Free of torch."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from foundry.tools.process.zygote import Worker

AT_ONCE = 4  # processes made before a timing may come in between, and before whoever is first has one
STOCKED = 3  # processes of a stock made at once
RESTOCKED = 2  # pairs started at once where a timing goes on: contexts made together take half as long
STALE_S = 60.0  # s: a candidate that was not timed by then is not timed at all

Starting = Callable[[], contextlib.AbstractContextManager[Callable[[], object]]]  # gives what lets others time
Make = Callable[[Sequence[str], str], Iterator[tuple[str, Worker]]]  # kinds, and the text of the candidate to make for


def nothing() -> None:
    """There is nobody to tell."""


@contextlib.contextmanager
def free() -> Iterator[Callable[[], object]]:
    """Nobody else is there."""
    yield nothing


@dataclass
class _Kind:
    """The processes of one kind. Those that are coming are some of those that start: their contexts are being made."""

    ready: list[Worker] = field(default_factory=list)
    starting: int = 0
    coming: int = 0
    awaited: int = 0  # of those coming

    @property
    def known(self) -> int:
        return len(self.ready) + self.starting


@dataclass(frozen=True)
class _Wish:
    """What one candidate under way asked for."""

    wanted: Counter[str]
    since: float  # by time.monotonic(), s


class WarmPool:
    """Processes that wait, by kind; thread-safe.

    `make` starts processes and yields each with its kind once it is ready, and ends those that are not;
    `bury` ends one that waited in vain. A pool that is not used makes none ahead: on a CPU they would take its cores.

    A kind that is a candidate's text serves that candidate alone.
    """

    def __init__(self, make: Make, bury: Callable[[Worker], object], *, is_used: bool) -> None:
        self._make, self._bury, self._is_used = make, bury, is_used
        self._kinds: dict[str, _Kind] = {}
        self._wishes: dict[str, _Wish] = {}  # by a candidate's text
        self._most = 0  # that may wait, as told last
        self._changed = threading.Condition()  # guards all of it; notified when a process is ready or given up

    def ready(self) -> dict[str, list[Worker]]:
        """The processes that wait, by kind."""
        with self._changed:
            return {name: list(kind.ready) for name, kind in self._kinds.items() if kind.ready}

    def want(
        self,
        text: str,
        wanted: Mapping[str, int],
        most: int,
        *,
        starting: Starting = free,
        begins: Callable[[], object] = nothing,
    ) -> None:
        """Lets so many of each kind wait on behalf of a candidate, beside what waits for others, and returns when they
        are ready. No more than `most` wait at a time, for all candidates together. `begins` is called when the first
        of them is about to come, `starting` is held while any is made."""
        for other in self._stale():
            self.forget(other)
        with self._changed:
            self._most = most
            self._wishes[text] = _Wish(Counter(wanted), time.monotonic())
        self._fill(text, lambda: in_order(self._missing(wanted)), starting, begins)

    def stock(
        self,
        text: str,
        wanted: Mapping[str, int],
        most: int,
        *,
        at_once: int = STOCKED,
        starting: Starting = free,
    ) -> bool:
        """Lets so many wait for whatever comes next, and makes `at_once` of them; whether there were any to make.
        Candidates that are under way take from these first."""
        with self._changed:
            self._most = most
        return self._fill(text, lambda: in_order(self._missing(wanted, at_least=Counter(wanted)))[:at_once], starting)

    def restock(self, text: str, kinds: Sequence[str], starting: Starting = free) -> None:
        """For a timing that takes more pairs than were asked for: where one kind has none, lets the next pairs wait."""

        def missing() -> list[str]:
            waiting = {name: len(self._of(name).ready) for name in kinds}
            if all(waiting.values()):
                return []
            return [name for turn in range(RESTOCKED) for name in kinds if waiting[name] <= turn][: self._room()]

        self._fill(text, missing, starting)

    def take(self, name: str) -> Worker | None:
        """One that is ready or coming: contexts are made one after the other, so a new one would come later."""
        with self._changed:
            kind = self._of(name)
            while not kind.ready and kind.coming > kind.awaited:
                kind.awaited += 1
                self._changed.wait()
                kind.awaited -= 1
            return kind.ready.pop() if kind.ready else None

    def forget(self, text: str) -> None:
        """A candidate is through: the processes that serve it alone end, what else waits for it serves the next one."""
        with self._changed:
            self._wishes.pop(text, None)
        self._end([text])

    def end_all(self) -> None:
        """Ends the processes that wait."""
        self._end(list(self._kinds))

    def _end(self, names: Sequence[str]) -> None:
        with self._changed:
            found = [worker for name in names for worker in self._of(name).ready]
            for name in names:
                self._of(name).ready.clear()
        for worker in found:
            self._bury(worker)

    def _stale(self) -> list[str]:
        """Candidates that asked more than STALE_S ago."""
        with self._changed:
            return [text for text, wish in self._wishes.items() if time.monotonic() - wish.since > STALE_S]

    # ------------------------------------------------------------ inside; the caller of these three holds the guard

    def _of(self, name: str) -> _Kind:
        return self._kinds.setdefault(name, _Kind())

    def _room(self) -> int:
        """How many more may wait."""
        return max(0, self._most - sum(kind.known for kind in self._kinds.values()))

    def _missing(self, names: Iterable[str], *, at_least: Counter[str] | None = None) -> list[str]:
        """The kind of each process that is to be started now."""
        asked = sum((wish.wanted for wish in self._wishes.values()), Counter[str]())
        asked |= at_least or Counter[str]()  # the larger of each
        return [name for name in names for _ in range(asked[name] - self._of(name).known)][: self._room()]

    # ------------------------------------------------------------ inside

    def _fill(
        self,
        text: str,
        missing: Callable[[], list[str]],
        starting: Starting,
        begins: Callable[[], object] = nothing,
    ) -> bool:
        """Makes what is `missing` once `starting` is held; whether there was anything. Nobody waits for that who misses
        nothing."""
        with self._changed:
            if not self._is_used or not missing():
                return False
        with starting() as let_others:
            with self._changed:
                left = missing()
                self._count(left, starting=1)
            is_any = bool(left)
            try:
                while left:
                    some, left = left[:AT_ONCE], left[AT_ONCE:]
                    self._make_some(some, text, begins)
                    if left:
                        begins = nothing
                        let_others()
            finally:
                with self._changed:
                    self._count(left, starting=-1)
        return is_any

    def _make_some(self, names: Sequence[str], text: str, begins: Callable[[], object]) -> None:
        left = list(names)  # neither ready nor given up
        with self._changed:
            self._count(left, coming=1)
        try:
            begins()
            for name, worker in self._make(names, text):
                left.remove(name)
                self._settle([name], worker)
        finally:
            self._settle(left)

    def _settle(self, names: Sequence[str], ready: Worker | None = None) -> None:
        """They are no longer coming: one is `ready`, or they are given up."""
        with self._changed:
            self._count(names, starting=-1, coming=-1)
            if ready is not None:
                self._of(names[0]).ready.append(ready)
            self._changed.notify_all()

    def _count(self, names: Iterable[str], *, starting: int = 0, coming: int = 0) -> None:
        for name in names:
            kind = self._of(name)
            kind.starting += starting
            kind.coming += coming


def in_order(names: Iterable[str]) -> list[str]:
    """Of which more are asked for, those come first: correctness and audit want candidates before pairs are timed."""
    left, ordered = Counter(names), list[str]()
    while left.total():
        ordered.append(max(left, key=lambda name: left[name]))
        left[ordered[-1]] -= 1
    return ordered
