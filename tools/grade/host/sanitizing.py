"""Runs compute-sanitizer on a kernel before it is called a winner.

It finds reads and writes outside of memory, and races in shared memory, which a comparison of outputs need not show.

The tool starts the program itself and speaks with it over a socket. The program is confined by those means with which
the tool watches a program of our own here. If it does not work so with a candidate, its check is not decided and says
so. Only text that was found correct is given to it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from foundry.knowledge.candidate import Audit, Build, Gate
from foundry.knowledge.targets import TargetTraits
from foundry.knowledge.task import Task
from foundry.tools.grade.host.folders import compiles_itself
from foundry.tools.grade.host.replay import Replaying, means_under
from foundry.tools.machine.holds import Holds
from foundry.tools.process.child import Finished
from foundry.tools.targets.cuda.disassembly import tool_path

SECONDS = {"memcheck": 45.0, "racecheck": 12.0}  # time limit of each check, seconds
CHECKS = tuple(SECONDS)
# Checks that follow every access to shared memory: a product of 4096 cubed takes many thousand times as long. Races
# depend on a kernel's barriers, not on its number of blocks. So these checks watch one call at the smallest declared
# shape, and the first blocks of each launch of the kernel compiler.
OF_SHARED_MEMORY = frozenset({"racecheck"})
FIRST_BLOCKS = 64  # a multiple of every cluster's
_LAUNCHED = re.compile(r"^(    \('\w+', )\((\d+), (\d+), (\d+)\)(?=, \(\d+, \d+, \d+\), \d+, \()", re.M)
OF_BLOCKS = f"(the first {FIRST_BLOCKS} blocks of each launch)"
NOT_SHARED = "not needed: by their machine code its kernels use no shared memory"
_SHARING = ("shared_load", "shared_store", "shared_atomic", "async_copy", "tensor")  # classes of instructions
_SUMMARY = re.compile(r"^=+ (?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", re.M)
_FINDING = re.compile(
    r"^=+ ((?:Invalid|Misaligned|Error: |Warning: Race|Program hit|Out-of-range|Stack|Malloc).*)$", re.M
)
_OF_TOOL = re.compile(
    r"^=+ (?:Error: )?((?:Device not supported|Target application terminated|No attachable).*)$", re.M
)


class Sanitizer:
    """The checks of one task's winners. Their processes may be started before a winner is known."""

    def __init__(self, task: Task, target: TargetTraits) -> None:
        """Looks for the target's tool; starts nothing."""
        self._task, self._target = task, target
        self._tool = tool_path(target.sanitizer) if target.sanitizer else None
        self._means: tuple[str, ...] | None = None  # means of the sandbox around the checked program
        self._waiting: dict[str, Replaying] = {}  # a check: its process
        self._is_closed = False
        self._guard, self._trial = threading.Lock(), threading.Lock()

    @property
    def is_asked(self) -> bool:
        """True if the target has a tool that checks kernels, installed here or not."""
        return bool(self._target.sanitizer)

    def _try_out(self, means: Collection[str], holds: Holds) -> None:
        """Finds out, once, under which of the sandbox `means` the tool can run a program here. Takes a second, in which
        no other process gets its context."""
        with self._trial:
            if self._tool and self._means is None:
                self._means = holds.start(lambda: means_under((str(self._tool),), tuple(means)))

    def begin(self, means: Collection[str], holds: Holds) -> None:
        """Starts one waiting process for each check, so that the next winner need not wait; none touches a GPU before
        it has a file."""
        self._try_out(means, holds)
        with self._guard:
            for check in CHECKS if self._means is not None and not self._is_closed else ():
                known = self._waiting.get(check)
                if known is None or not known.is_waiting:
                    self._waiting[check] = self._start_replay(check)
                    if known is not None:
                        known.close()

    def check(
        self, text: str, build: Build, means: Collection[str], *, at_once: bool, holds: Callable[[], Holds] = Holds
    ) -> list[Gate]:
        """Runs the checks on a kernel file; a gate for each. Empty for a target without such a tool.

        A check that could not be made passes and says why. With `at_once` the checks run side by side. Each shares the
        device by `holds` of its own, and lets others time between two steps.
        """
        if not self.is_asked:
            return []
        if self._tool is None:
            return [Gate("compute-sanitizer", True, "not asked: the tool is not installed here")]
        self._try_out(means, holds())
        is_sharing = compiles_itself(text) or may_share(build)
        needed = [check for check in CHECKS if is_sharing or check not in OF_SHARED_MEMORY]
        with ThreadPoolExecutor(len(CHECKS) if at_once else 1) as pool:
            found = dict(
                zip(needed, pool.map(lambda check: self._run_check(check, text, holds()), needed), strict=True)
            )
        return [found.get(check) or Gate(check, True, NOT_SHARED) for check in CHECKS]

    def _run_check(self, check: str, text: str, holds: Holds) -> Gate:
        """Runs one check on the file, in a waiting process if there is one, else in a new one; its finding as a
        gate."""
        with self._guard:
            waiting = None if compiles_itself(text) else self._waiting.pop(check, None)
        if waiting is None or not waiting.is_waiting:
            if waiting is not None:
                waiting.close()
            waiting = self._start_replay(check, text)
        asked = first_blocks(text) if check in OF_SHARED_MEMORY else text
        try:
            with holds.shared():
                gate = read_check(check, waiting.finish(asked, SECONDS[check], holds.pause))
        finally:
            waiting.close()
        return gate if asked == text else replace(gate, evidence=f"{gate.evidence} {OF_BLOCKS}")

    def _start_replay(self, check: str, text: str = "") -> Replaying:
        """Starts the tool for `check` around a replay process, which waits for its file; racecheck calls the smallest
        shape."""
        argv, means = [str(self._tool), "--tool", check, "--print-limit", "5"], self._means or ()
        return Replaying(
            argv, self._task, self._target.torch_device, means, text=text, smallest=check in OF_SHARED_MEMORY
        )

    def close(self) -> None:
        """Ends the waiting processes and lets no new ones start."""
        with self._guard:
            self._is_closed = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for one in waiting:
            one.close()


def first_blocks(text: str) -> str:
    """The text with launches of the kernel compiler cut to FIRST_BLOCKS blocks. Unchanged if it is another text, or if
    its blocks share all the work (`gridDim`): fewer would do more each."""

    def fewer(found: re.Match[str]) -> str:
        """Replaces one launch's grid by one with at most FIRST_BLOCKS blocks in all."""
        left, sizes = FIRST_BLOCKS, list[str]()
        for size in map(int, found.groups()[1:]):
            sizes.append(str(min(size, left)))
            left //= min(size, left)
        return f"{found[1]}({', '.join(sizes)})"

    return text if "gridDim" in text else _LAUNCHED.sub(fewer, text)


def may_share(build: Build) -> bool:
    """True unless all machine code was read and shows that no kernel uses shared memory."""
    used = build.resources
    unread = not used.kernels or used.kernels.keys() - used.instructions.keys()
    sharing = (code.get(f"all_{kind}") for code in used.instructions.values() for kind in _SHARING)
    return bool(unread or used.shared_bytes or any(sharing))


def with_gates(audit: Audit, gates: Sequence[Gate]) -> Audit:
    """The audit with more gates; a failed one vetoes like any other."""
    return replace(audit, clean=audit.clean and all(gate.passed for gate in gates), gates=(*audit.gates, *gates))


def has_looked(output: str) -> bool:
    """True if compute-sanitizer's output shows that it watched the program to its end, or found something."""
    return _SUMMARY.search(output) is not None and ("replayed" in output or _FINDING.search(output) is not None)


def read_check(check: str, done: Finished) -> Gate:
    """The tool's output as a gate: fails with the first finding; passes as "not decided" if the tool could not run."""
    if done.reason:
        return Gate(check, True, f"not decided: under compute-sanitizer it {done.reason}")
    summary = _SUMMARY.search(done.output)
    if summary is None or not has_looked(done.output):
        why = _OF_TOOL.search(done.output) or re.search(r"^\S.*$", done.output, re.M)
        words = why[why.lastindex or 0] if why else "it said nothing"
        return Gate(check, True, f"not decided: compute-sanitizer could not run it ({words[:160]})")
    count = int(summary[1] or summary[2])
    if not count:
        where = re.search(r"^replayed (.+)$", done.output, re.M)
        return Gate(check, True, f"compute-sanitizer found nothing {where[1] if where else ''}".rstrip())
    first = _FINDING.search(done.output)
    return Gate(check, False, f"compute-sanitizer found {count}: {first[1].strip()[:200] if first else 'see its log'}")
