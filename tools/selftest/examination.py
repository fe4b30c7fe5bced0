"""Sends every faulty kernel through the real build and the real correctness stage. Free of torch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from foundry.knowledge import codec
from foundry.knowledge.candidate import Build, Stage, Verdict
from foundry.knowledge.device import Device
from foundry.knowledge.errors import TaskError
from foundry.knowledge.task import Task
from foundry.tools.grade.host.folders import prepare_folders
from foundry.tools.grade.host.grader import CANDIDATE_MEMORY_SHARE, LANES, thread_count
from foundry.tools.grade.host.workbench import Workbench
from foundry.tools.process.child import Limits, machine_memory_bytes
from foundry.tools.process.zygote import WorkerDied, Zygote
from foundry.tools.selftest.faults.fault import Mutant
from foundry.tools.selftest.report import FaultResult

STAGE: Stage = "full"  # the stage of `foundry verify`
BUILT_AHEAD = 2  # builds in progress beside the lanes that verify
COMPARE_S = 120.0  # seconds allowed for one bitwise comparison

Compare = Callable[[str, str], Awaitable[str]]
"""(correct text, faulty text) -> the inputs on which their outputs differ, "" if none."""

_NOT_PLANTED = frozenset({"compile_error", "unproven"})


async def confirm_correct(bench: Workbench, text: str) -> None:
    """Raises TaskError unless the grader accepts the correct kernel: faults in a wrong one would prove nothing."""
    build = await bench.build(text)
    verdict = await bench.verify(text, build, STAGE)
    if not verdict.correct:
        raise TaskError(
            f"the kernel that faults would be planted into is itself refused: {verdict.evidence or verdict.outcome}",
            "give a correct candidate",
        )


async def examine(bench: Workbench, correct: str, mutants: Sequence[Mutant], compare: Compare) -> list[FaultResult]:
    """Builds and verifies each mutant; returns its result, in the order of `mutants`."""
    places = asyncio.Semaphore(LANES + BUILT_AHEAD)

    async def one(mutant: Mutant) -> FaultResult:
        """Builds and verifies one faulty kernel; if it passes, compares it with the correct one bit for bit."""
        async with places:
            start = time.monotonic()
            build = await bench.build(mutant.text)
            verdict = await _verify_mutant(bench, mutant.text, build)
            difference = await compare(correct, mutant.text) if verdict.correct else ""
            return finding(mutant, verdict, difference, time.monotonic() - start)

    return list(await asyncio.gather(*[one(mutant) for mutant in mutants]))


async def _verify_mutant(bench: Workbench, text: str, build: Build) -> Verdict:
    """Verifies a mutant by the screen, and by the full stage only if the screen accepts it.

    The screen is cheaper, because its truths are computed once for all candidates. The full stage repeats its
    questions.
    """
    verdict = await bench.verify(text, build, "screen")
    return await bench.verify(text, build, STAGE) if verdict.correct else verdict


def finding(mutant: Mutant, verdict: Verdict, difference: str, seconds: float) -> FaultResult:
    """Classifies one mutant: caught, missed, equivalent (accepted, same bits everywhere) or not planted (does not
    compile)."""
    if verdict.correct:
        if not difference:
            words = "the same bits as the correct kernel's on all inputs"
            return FaultResult(mutant.fault, "equivalent", "", words, seconds)
        return FaultResult(
            mutant.fault, "missed", "", f"accepted, although its outputs differ on: {difference}", seconds
        )
    failed = [gate for gate in verdict.gates if not gate.passed]
    gate, evidence = (failed[0].gate, failed[0].evidence) if failed else (verdict.outcome, verdict.evidence)
    if verdict.outcome in _NOT_PLANTED:
        return FaultResult(mutant.fault, "not planted", gate, evidence, seconds)
    return FaultResult(
        mutant.fault, standing="caught", gate=gate, evidence=evidence, seconds=seconds, outcome=verdict.outcome
    )


class Comparer:
    """Compares two candidates bit for bit, in one process that is confined like a candidate's."""

    def __init__(self, task: Task, device: Device, scratch: Path, zygote: Zygote) -> None:
        """Starts no process yet."""
        self._task = task
        self._device = device
        self._folder = scratch / "comparing"
        self._zygote = zygote
        self._lock = asyncio.Lock()

    async def __call__(self, correct: str, faulty: str) -> str:
        """Names inputs on which the two files' outputs differ, or ""."""
        async with self._lock:
            return await asyncio.to_thread(self._ask, correct, faulty)

    def _ask(self, correct: str, faulty: str) -> str:
        """Forks the comparing process and returns its answer; an early end counts as a difference."""
        threads = thread_count(self._device)
        self._folder.mkdir(parents=True, exist_ok=True)
        limits = Limits(wall_s=COMPARE_S, memory_bytes=int(2 * CANDIDATE_MEMORY_SHARE * machine_memory_bytes()))
        own = prepare_folders(faulty, self._folder)
        worker = self._zygote.fork(
            "foundry.tools.selftest.comparing:serve",
            limits,
            directory=self._folder,
            environment=own.environment,
            sandbox=own.sandbox,
            folder_locks=own.locks,
        )
        try:
            message = {
                "task": codec.encode(self._task),
                "correct": correct,
                "faulty": faulty,
                "stage": STAGE,
                "threads": threads,
                "place": self._device.traits.torch_device,
                "folder": str(self._folder),
            }
            answer, _ = worker.request(message, timeout_s=COMPARE_S)
            return str(answer["difference"])
        except WorkerDied as died:
            return f"unknown inputs: the comparison ended early ({died})"  # not shown to be equivalent: a miss
        finally:
            worker.end()
