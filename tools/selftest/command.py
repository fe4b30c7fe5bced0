"""`foundry verify --self-test`: from files to a report. Free of torch; the main process runs no candidate."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import typer

from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.errors import CannotLower, MissingTool, TaskError, UsageError
from foundry.knowledge.task import Task
from foundry.tools.command_line import print_json
from foundry.tools.grade.host.grader import thread_count
from foundry.tools.grade.host.workbench import Workbench, open_workbench
from foundry.tools.machine.scratch import scratch_folder
from foundry.tools.process.zygote import Zygote
from foundry.tools.selftest.examination import Compare, Comparer, confirm_correct, examine
from foundry.tools.selftest.faults.fault import Mutant
from foundry.tools.selftest.faults.original import original_of
from foundry.tools.selftest.planting import DEFAULT_FAULTS, library_mutants, source_mutants
from foundry.tools.selftest.report import SelfTestReport, lines
from foundry.tools.task.file import read_task
from foundry.tools.task.plain_file import read_kernel


@dataclass(frozen=True)
class SelfTestRequest:
    """The arguments of `foundry verify --self-test`."""

    task: Path
    candidate: Path | None
    target: TargetName | Literal["auto"]
    scale: int | None
    faults: int
    seed: int
    min_caught: float
    model: str = ""  # the name of the model's class, if the user gave it


def show(request: SelfTestRequest, *, as_json: bool) -> NoReturn:
    """Prints the report; exits with 1 if the share of caught faults is below the minimum asked for."""
    report = run(request)
    if as_json:
        print_json(report.to_json())
    else:
        typer.echo("\n".join(lines(report)))
    raise typer.Exit(0 if report.rate >= request.min_caught else 1)


def run(request: SelfTestRequest) -> SelfTestReport:
    """`self_test` of files; raises UsageError for a file that cannot be read, and what `self_test` raises."""
    text = read_kernel(request.candidate) if request.candidate is not None else None
    task = read_task(request.task, scale=request.scale, model=request.model)
    return self_test(task, text, target=request.target, faults=request.faults, seed=request.seed)


def self_test(
    task: Task,
    candidate: str | None = None,
    *,
    target: TargetName | Literal["auto"] = "auto",
    faults: int = DEFAULT_FAULTS,
    seed: int = 0,
) -> SelfTestReport:
    """Plants faults into the compiler's kernel of the task, or into a candidate's native source, and grades each copy.

    `seed` chooses the faults. Blocking. Raises TaskError for a task that cannot be judged, UsageError if no place
    for a fault is found, MissingTool without a compiler or a device.
    """
    from foundry.tools.machine.device import describe

    device = describe(target)
    if not device.present:
        raise MissingTool(f"there is no {device.target} device here, so no kernel can be judged on it", "--target cpu")

    async def work() -> SelfTestReport:
        """Opens a workbench and a comparer, runs the self-test and closes them."""
        zygote = await asyncio.to_thread(Zygote.start, threads=thread_count(device))
        with contextlib.closing(zygote), scratch_folder("self-test") as scratch:
            bench = await open_workbench(task, device, scratch, seed=seed, zygote=zygote)
            comparer = Comparer(task, device, scratch, zygote)
            try:
                return await self_test_in(bench, task, device, candidate, comparer, faults=faults, seed=seed)
            finally:
                await bench.aclose()

    return asyncio.run(work())


async def self_test_in(
    bench: Workbench,
    task: Task,
    device: Device,
    candidate: str | None,
    compare: Compare,
    *,
    faults: int = DEFAULT_FAULTS,
    seed: int = 0,
) -> SelfTestReport:
    """Plants faults into a correct kernel, has the grader judge each, and reports which were caught.

    The kernel is `candidate`, or the compiler's first one. Grader and bitwise comparison are given. Raises TaskError
    and UsageError.
    """
    start = time.monotonic()
    correct, mutants = await _plant(bench, task, device, candidate, faults, seed=seed)
    await confirm_correct(bench, correct)
    findings = await examine(bench, correct, mutants, compare)
    kernel = "the kernel compiler's first kernel" if candidate is None else "the candidate's source"
    return SelfTestReport(
        task.name,
        target=device.target,
        device=device.key,
        kernel=kernel,
        seed=seed,
        findings=tuple(findings),
        seconds=time.monotonic() - start,
    )


async def _plant(
    bench: Workbench, task: Task, device: Device, candidate: str | None, faults: int, seed: int
) -> tuple[str, list[Mutant]]:
    """(text of the correct file, faulty files): faults in the candidate's source, or in the compiler's kernel if there
    is none.

    Raises UsageError or TaskError if no faults can be planted.
    """
    if candidate is not None:
        mutants = source_mutants(candidate, faults, seed)
        if not mutants:
            raise UsageError("the candidate has no C++ or CUDA source in a string to plant faults into")
        return candidate, mutants
    intake = await bench.intake()
    if not intake.graphs:
        raise TaskError(f"no faults can be planted: the task could not be captured ({intake.capture_note})", _REMEDY)
    try:
        original = original_of(task, intake.graphs, device)
    except CannotLower as refusal:
        raise TaskError(
            f"no faults can be planted: the kernel compiler has no kernel for this task ({refusal})", _REMEDY
        ) from refusal
    return original.text, library_mutants(original, faults, seed)


_REMEDY = "give a correct candidate file after the task"
