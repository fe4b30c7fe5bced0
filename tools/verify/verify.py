"""`foundry verify`: one task, one candidate, the full protocol, one report. Free of torch.

Works on any KernelBench-style pair, ours or not, alone or as a CI gate.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, cast

from foundry.knowledge.candidate import Baseline, Build, Candidate, Contest, Evaluation, Gate, Stage, Timing
from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.errors import MissingTool
from foundry.knowledge.ruling import Ruling, RulingWord, objection, rule
from foundry.knowledge.task import OWN_PARAMETERS, Policy, Task
from foundry.tools.grade.host.examine import Step, examine
from foundry.tools.grade.host.sanitizing import with_gates
from foundry.tools.grade.host.workbench import BenchNotes, Workbench, open_workbench
from foundry.tools.machine.ceilings import with_known_ceilings
from foundry.tools.machine.device import describe, usable_cores
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.machine.scratch import scratch_folder
from foundry.tools.process.zygote import Zygote
from foundry.tools.targets.base import read_literals
from foundry.tools.targets.registry import target_of
from foundry.tools.verify.receipt import Receipt, make_receipt, missing_means, sha256

Record = TypeVar("Record")


@dataclass(frozen=True)
class VerifyReport:
    """The answer of `foundry verify`.

    `seconds` splits the wall time by reached step: open, intake, build (what remains, because it begins first),
    baseline, verify, audit, time, profile (includes measuring the device's ceilings the first time), compile, close.
    """

    evaluation: Evaluation
    ruling: Ruling
    device: str
    policy: Policy
    task: str
    isolation: tuple[str, ...] = ()  # means of the operating system that were active around the candidate
    baseline: Baseline | None = None
    contest: Contest | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    receipt: Receipt | None = None

    @property
    def verdict(self) -> RulingWord:
        """The ruling's verdict."""
        return self.ruling.verdict

    @property
    def reasons(self) -> tuple[Gate, ...]:
        """Gates that failed."""
        return self.ruling.reasons

    @property
    def gates(self) -> tuple[Gate, ...]:
        """All gates: of correctness, audit and timing."""
        verdict, audit = self.evaluation.verdict, self.evaluation.audit
        return (*(verdict.gates if verdict else ()), *(audit.gates if audit else ()), *self.ruling.gates)

    @property
    def labels(self) -> tuple[str, ...]:
        """The audit's labels; () without an audit."""
        return self.evaluation.audit.labels if self.evaluation.audit else ()

    @property
    def timing(self) -> Timing | None:
        """The times; None if timing failed or did not happen."""
        timing = self.evaluation.timing
        return None if timing is None or timing.problem else timing

    @property
    def speedup(self) -> float | None:
        """Speedup over PyTorch eager; None if it was not timed."""
        return self.timing.speedup if self.timing else None

    @property
    def speedup_ci95(self) -> tuple[float, float] | None:
        """95 % interval of the speedup; None if it was not timed."""
        return self.timing.speedup_ci95 if self.timing else None

    @property
    def accuracy_class(self) -> str | None:
        """The accuracy class of the verdict; None without a verdict."""
        return self.evaluation.verdict.accuracy_class if self.evaluation.verdict else None

    def to_json(self) -> dict[str, Any]:
        """The documented contract of `foundry verify --json`."""
        compiled = self.contest.rival("compile") if self.contest else None
        return {
            "verdict": self.verdict,
            "outcome": self.ruling.outcome,
            "reasons": [{"gate": gate.gate, "evidence": gate.evidence} for gate in self.reasons],
            "speedup": self.speedup,
            "speedup_ci95": list(self.speedup_ci95) if self.speedup_ci95 else None,
            "baseline_ms": self.timing.baseline_ms if self.timing else None,
            "candidate_ms": self.timing.candidate_ms if self.timing else None,
            "target": self.evaluation.candidate.target,
            "device": self.device,
            "policy": self.policy,
            "parameters": "as-built" if OWN_PARAMETERS in self.labels else "loaded",
            "task": self.task,
            "candidate_sha256": self.evaluation.candidate.source,
            "accuracy_class": self.accuracy_class,
            "compile_speedup": compiled.over_baseline if compiled else None,
            "compile_ms": compiled.ms if compiled else None,
            "speedup_vs_compile": compiled.by_kernel if compiled else None,
            "compile_note": self.contest.told_beside("compile") if self.contest else "",
            "labels": list(self.labels),
            "isolation": list(self.isolation),
            "isolation_missing": missing_means(self.isolation) if self.isolation else [],
            "gates": [gate.shown for gate in self.gates],
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "wall_s": round(sum(self.seconds.values()), 3),
        }


def verify_pair(
    task: Task,
    text: str,
    *,
    policy: Policy | None = None,
    target: TargetName | Literal["auto"] = "auto",
    seed: int = 0,
    stage: Stage = "full",
    with_compile: bool = False,
    command: str = "",
) -> VerifyReport:
    """Builds, verifies, audits and times one candidate. Blocking; see `verify_in` for the checks.

    Raises TaskError for a task that cannot be judged, MissingTool without a compiler or a device to run on.
    """
    if problem := hopeless(text):
        device = _device_here(target)
        return _refuse_at_once(task, text, device, policy or task.options.policy, problem)
    with contextlib.closing(Zygote.begin(threads=usable_cores())) as zygote:  # starts while the device is described
        device = _device_here(target)
        chosen = policy or task.options.policy
        asked = replace(task, options=replace(task.options, policy=chosen))  # decides if the baseline may use TF32

        async def work() -> VerifyReport:
            """Opens a workbench, verifies the candidate, compares with a receipt if asked, and closes the workbench."""
            clock = Clock()
            building = asyncio.create_task(_build_early(device, text))
            with scratch_folder("verify") as scratch:
                bench = await open_workbench(asked, device, scratch, seed=seed, zygote=zygote)
                clock.note("open")
                try:
                    report = await verify_in(
                        bench,
                        asked,
                        text,
                        policy=chosen,
                        stage=stage,
                        clock=clock,
                        with_compile=with_compile,
                        building=building,
                    )
                    report = _with_receipt(report, bench.device, bench.notes, task, text, command=command)
                finally:
                    await bench.aclose()
            clock.note("close")
            return report

        return asyncio.run(work())


def _device_here(target: TargetName | Literal["auto"]) -> Device:
    """The device, with ceilings from an earlier measurement. Raises MissingTool if it is absent."""
    device = with_known_ceilings(describe(target))
    if not device.present:
        raise MissingTool(f"there is no {device.target} device here, so nothing can be verified on it", "--target cpu")
    return device


def hopeless(text: str) -> str:
    """Says why a candidate's text cannot work on any device, before a process starts; "" if it may."""
    if not text.strip():
        return "the file is empty"
    try:
        read_literals(text)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}" if error.lineno else f"the file cannot be parsed: {error.msg}"
    return "" if "ModelNew" in text else "the file defines no class ModelNew(nn.Module)"


def _refuse_at_once(task: Task, text: str, device: Device, policy: Policy, problem: str) -> VerifyReport:
    """The report on a text that cannot work: the build failed."""
    evaluation = Evaluation(_candidate_of(device, text), Build(False, 0.0, first_error=problem))
    return VerifyReport(evaluation, rule(evaluation), device.key, policy, task.name)


def _candidate_of(device: Device, text: str) -> Candidate:
    """The record of a user's candidate; its source is named by its hash."""
    return Candidate("verify", island=-1, generation=0, target=device.target, origin="user", source=sha256(text))


async def _build_early(device: Device, text: str) -> Build:
    """Compiles while the worker process starts and the task is traced; on a CPU, timing waits for it."""
    async with DeviceLock(device).compiling():
        return await asyncio.to_thread(target_of(device).build, text)


class Clock:
    """Wall-clock seconds by step: `note` books the time since the last note under a name."""

    def __init__(self) -> None:
        """Starts the clock."""
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def note(self, name: str) -> None:
        """Books the seconds since the last note under `name`."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


async def verify_in(
    bench: Workbench,
    task: Task,
    text: str,
    policy: Policy,
    stage: Stage,
    clock: Clock | None = None,
    *,
    with_compile: bool = False,
    building: asyncio.Task[Build] | None = None,
) -> VerifyReport:
    """Runs all steps for one candidate in an open workbench and rules on it. Raises TaskError.

    `building`: a build that was started before. torch.compile is timed only if the candidate was timed.
    """
    clock = clock or Clock()

    async def ask(step: Step, shape: type[Record], work: Callable[[Workbench], Awaitable[Record]]) -> Record:
        """Asks the workbench for a step, or awaits the build begun early; notes the time."""
        answer = cast(Record, await building) if building and step == "build" else await work(bench)
        clock.note(step)
        return answer

    await bench.intake()
    clock.note("intake")
    evaluation = await examine(_candidate_of(bench.device, text), text, stage, policy, ask)
    if stage != "final" and evaluation.audit and not objection(evaluation):  # a final audit did this already
        evaluation = replace(
            evaluation, audit=with_gates(evaluation.audit, await bench.sanitize(text, evaluation.build))
        )
        clock.note("sanitize")
    baseline = await bench.baseline() if evaluation.build.ok else None
    contest = None
    if with_compile and evaluation.timing and not evaluation.timing.problem:
        contest = await bench.contest(text, evaluation.build, ["compile"])
        clock.note("compile")
    return VerifyReport(
        evaluation=evaluation,
        ruling=rule(evaluation, degenerate=baseline.degenerate if baseline else ""),
        device=bench.device.key,
        policy=policy,
        task=task.name,
        isolation=bench.notes.isolation,
        baseline=baseline,
        contest=contest,
        seconds=clock.seconds,
    )


def _with_receipt(
    report: VerifyReport, device: Device, notes: BenchNotes, task: Task, text: str, command: str
) -> VerifyReport:
    """The report, with a receipt if the kernel was accepted, so that every receipt claims a proven kernel."""
    if not report.ruling.accepted or report.baseline is None:
        return report
    receipt = make_receipt(
        task,
        text,
        device,
        report.baseline,
        report.evaluation,
        policy=report.policy,
        seeds=notes.seeds,
        cost={"wall_s": round(sum(report.seconds.values()), 3)},
        command=command,
        isolation=report.isolation,
        seconds=report.seconds,
        contest=report.contest,
    )
    return replace(report, receipt=receipt)
