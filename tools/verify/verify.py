"""`foundry verify`: one task, one candidate, the full protocol, one report. Free of torch.

Works on any KernelBench-style pair, ours or not, alone or as a CI gate.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Candidate,
    Evaluation,
    Gate,
    Outcome,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.errors import MissingTool
from foundry.knowledge.roofline import used_precision
from foundry.knowledge.task import Policy, Task
from foundry.tools.grade.grader import Notes
from foundry.tools.grade.timed_groups import CLOCK_MIN_MS, clocks_agree
from foundry.tools.grade.workbench import LocalWorkbench, Workbench, open_workbench, target_of
from foundry.tools.machine.ceilings import ceilings, known, measured_alone
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.targets.base import read_literals
from foundry.tools.verify.receipt import Receipt, make_receipt, missing_means, sha256

FLOOR_LOOKS = 3  # at the ceilings, before they call a timing impossible
FLOOR_SLACK = 1.15  # ceilings are the best rates we measured, not the machine's last word

Ruling = Literal["accepted", "rejected", "incorrect", "failed"]
_RULINGS: dict[Outcome, Ruling] = {
    "wrong_result": "incorrect",
    "inaccurate": "incorrect",
    "nondeterministic": "incorrect",
    "stale_weights": "incorrect",
    "cheating": "rejected",
}


@dataclass(frozen=True)
class VerifyReport:
    """The answer of `foundry verify`. `seconds` splits the wall time: open, intake, build (what is left of it then,
    because it begins first), baseline, verify, audit, time, compile, ceilings, close."""

    verdict: Ruling
    reasons: tuple[Gate, ...]  # what failed
    target: TargetName
    device: str
    policy: Policy
    task: str
    candidate_sha256: str
    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    accuracy_class: str | None = None
    labels: tuple[str, ...] = ()
    isolation: tuple[str, ...] = ()  # the system's means that were active around the candidate
    gates: tuple[Gate, ...] = ()  # everything that was looked at
    baseline: Baseline | None = None
    evaluation: Evaluation | None = None
    measured_on: Device | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    receipt: Receipt | None = None

    def to_json(self) -> dict[str, Any]:
        """The documented contract of `foundry verify --json`."""
        return {
            "verdict": self.verdict,
            "reasons": [{"gate": gate.gate, "evidence": gate.evidence} for gate in self.reasons],
            "speedup": self.speedup,
            "speedup_ci95": list(self.speedup_ci95) if self.speedup_ci95 else None,
            "baseline_ms": self.baseline_ms,
            "candidate_ms": self.candidate_ms,
            "target": self.target,
            "device": self.device,
            "policy": self.policy,
            "task": self.task,
            "candidate_sha256": self.candidate_sha256,
            "accuracy_class": self.accuracy_class,
            "compile_speedup": self.baseline.compile_speedup if self.baseline else None,
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
    compile_baseline: bool = False,
    command: str = "",
) -> VerifyReport:
    """Builds, verifies, audits and times one candidate. Blocking; see `verify_in` for the checks.

    Raises TaskError for a task that cannot be judged, MissingTool without a compiler or a device to run on.
    """
    from foundry.tools.machine.device import describe

    device = known(describe(target))
    if not device.present:
        raise MissingTool(f"there is no {device.target} device here, so nothing can be verified on it", "--target cpu")
    chosen = policy or task.options.policy
    if problem := hopeless(text):
        return _failed_at_once(task, text, device, chosen, problem)

    async def work() -> VerifyReport:
        clock = Clock()
        asked = replace(task, options=replace(task.options, policy=chosen))  # whether the baseline may use TF32
        building = asyncio.create_task(_build_early(device, text))
        with tempfile.TemporaryDirectory(prefix="foundry-verify-") as scratch:
            bench = await open_workbench(asked, device, Path(scratch), seed=seed)
            clock.note("open")
            try:
                report = await verify_in(
                    bench, asked, text, chosen, stage, clock, compile_baseline=compile_baseline, building=building
                )
                report = _with_receipt(report, _notes(bench), task, text, command)
            finally:
                await bench.aclose()
        clock.note("close")
        return report

    return asyncio.run(work())


def hopeless(text: str) -> str:
    """Why a candidate's text cannot work whatever it is run on, or "": known before any process is started."""
    if not text.strip():
        return "the file is empty"
    try:
        read_literals(text)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}" if error.lineno else f"the file cannot be parsed: {error.msg}"
    return "" if "ModelNew" in text else "the file defines no class ModelNew(nn.Module)"


def _failed_at_once(task: Task, text: str, device: Device, policy: Policy, problem: str) -> VerifyReport:
    reasons = (Gate("builds", False, problem),)
    return VerifyReport("failed", reasons, device.target, device.key, policy, task.name, sha256(text), gates=reasons)


async def _build_early(device: Device, text: str) -> Build:
    """Compiles while the worker process starts and the task is traced; on a CPU timing waits for it."""
    async with DeviceLock(device).compiling():
        return await asyncio.to_thread(target_of(device).build, text)


def _notes(bench: Workbench) -> Notes:
    return bench.notes if isinstance(bench, LocalWorkbench) else Notes()


class Clock:
    """Seconds since the last note, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def note(self, name: str) -> None:
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
    compile_baseline: bool = False,
    building: asyncio.Task[Build] | None = None,
) -> VerifyReport:
    """The checks in order; the first step that fails ends them. Raises TaskError.

    `building`: the build, where it was begun before.
    """
    clock = clock or Clock()
    device = bench.device
    report = VerifyReport(
        "failed", (), device.target, device.key, policy, task.name, sha256(text), isolation=_notes(bench).isolation
    )
    report = replace(report, seconds=clock.seconds)
    intake = await bench.intake()
    clock.note("intake")
    build = await (building or bench.build(text))
    clock.note("build")
    candidate = Candidate("verify", -1, 0, device.target, "user", sha256(text))
    if not build.ok:
        verdict = Verdict("compile_error", stage, evidence=build.first_error)
        return _stopped(report, verdict, Evaluation(candidate, build, verdict))
    baseline = await bench.baseline()
    clock.note("baseline")
    verdict = await bench.verify(text, build, stage)
    clock.note("verify")
    report = replace(report, baseline=baseline, gates=verdict.gates)
    if not verdict.correct:
        return _stopped(report, verdict, Evaluation(candidate, build, verdict))
    audit = await bench.audit(text, build, verdict, policy)
    clock.note("audit")
    timing = await bench.time(text, build, stage)
    clock.note("time")
    if compile_baseline:
        baseline = await bench.compile_baseline(baseline)
        clock.note("compile")
    floor_ms = None
    if intake.graphs:
        device = await measured_alone(device)  # kept from the first time on a machine
        floor_ms = await checked_floor_ms(device, intake.graphs[0].min_bytes, timing)
        used = used_precision(intake.graphs[0], audit.labels)
        roofline_ms = device.floor_ms(intake.graphs[0].flops, intake.graphs[0].min_bytes, used)
        baseline = replace(baseline, floor_ms=roofline_ms)  # what the receipt's share of the floor is of
        clock.note("ceilings")
    report = replace(report, baseline=baseline)
    return _ruled(report, Evaluation(candidate, build, verdict, audit, timing), device, floor_ms)


def traffic_floor_ms(device: Device, min_bytes: int) -> float | None:
    """The time that moving inputs, parameters and outputs once takes at best: no algebra avoids it (arithmetic can be
    avoided by other algorithms, so it sets no hard floor)."""
    return device.floor_ms(0.0, float(min_bytes), "half")


async def checked_floor_ms(device: Device, min_bytes: int, timing: Timing) -> float | None:
    """`traffic_floor_ms`; where the timing lies below it, with the ceilings measured again first: they may have been
    taken while the machine was busy, and an honest kernel must not pay for that."""
    floor_ms = traffic_floor_ms(device, min_bytes)
    for _ in range(FLOOR_LOOKS):
        if floor_ms is None or timing.candidate_ms * FLOOR_SLACK >= floor_ms:
            break
        async with DeviceLock(device).exclusive():
            fresh = await asyncio.to_thread(ceilings, device, again=True)  # the best ever seen
        floor_ms = traffic_floor_ms(replace(device, ceilings=fresh), min_bytes)
    return floor_ms


def timing_gates(timing: Timing, floor_ms: float | None) -> tuple[Gate, ...]:
    """Whether a timing can be true: its outputs were right, both clocks agree, and it is not beyond the machine."""
    if timing.problem:
        name = timing.gate or ("timed outputs" if timing.outcome == "cheating" else "timing")
        return (Gate(name, False, timing.problem),)
    gates = [Gate("timed outputs", True, "outputs of timed calls agree with PyTorch's on the same inputs")]
    if timing.candidate_ms >= CLOCK_MIN_MS:
        words = f"the judge's own clock measured {timing.wall_ratio:.3f} times what the candidate's process reported"
        gates.append(Gate("clock", clocks_agree(timing), words))
    if floor_ms is not None:
        passed = timing.candidate_ms * FLOOR_SLACK >= floor_ms
        words = f"{timing.candidate_ms:.4g} ms against {floor_ms:.4g} ms to move inputs and outputs once on this device"
        gates.append(Gate("physical floor", passed, words))
    return tuple(gates)


def _stopped(report: VerifyReport, verdict: Verdict, evaluation: Evaluation) -> VerifyReport:
    failing = tuple(gate for gate in verdict.gates if not gate.passed)
    reasons = failing or (Gate("builds" if verdict.outcome == "compile_error" else "runs", False, verdict.evidence),)
    return replace(report, verdict=_RULINGS.get(verdict.outcome, "failed"), reasons=reasons, evaluation=evaluation)


def _ruled(report: VerifyReport, evaluation: Evaluation, device: Device, floor_ms: float | None) -> VerifyReport:
    """The report of a correct candidate: audit and timing decide."""
    verdict, audit, timing = _complete(evaluation)
    gates = [*audit.gates, *timing_gates(timing, floor_ms)]
    if report.baseline is not None and report.baseline.degenerate:
        gates.append(Gate("task can prove something", False, report.baseline.degenerate))
    reasons = tuple(gate for gate in gates if not gate.passed)
    ruling: Ruling = "rejected" if reasons else "accepted"
    if timing.problem and timing.outcome != "cheating" and len(reasons) == 1:
        ruling = _RULINGS.get(timing.outcome, "failed")
    is_timed = not timing.problem
    audit = replace(audit, clean=audit.clean and not reasons, gates=tuple(gates))
    return replace(
        report,
        verdict=ruling,
        reasons=reasons,
        speedup=timing.speedup if is_timed else None,
        speedup_ci95=timing.speedup_ci95 if is_timed else None,
        baseline_ms=timing.baseline_ms if is_timed else None,
        candidate_ms=timing.candidate_ms if is_timed else None,
        accuracy_class=verdict.accuracy_class,
        labels=audit.labels,
        gates=(*report.gates, *gates),
        evaluation=replace(evaluation, audit=audit),
        measured_on=device,
    )


def _complete(evaluation: Evaluation) -> tuple[Verdict, Audit, Timing]:
    return cast("tuple[Verdict, Audit, Timing]", (evaluation.verdict, evaluation.audit, evaluation.timing))


def _with_receipt(report: VerifyReport, notes: Notes, task: Task, text: str, command: str) -> VerifyReport:
    """An accepted kernel's receipt; what was rejected has none, so that a receipt always claims a proven kernel."""
    evaluation, baseline, device = report.evaluation, report.baseline, report.measured_on
    if report.verdict != "accepted" or evaluation is None or baseline is None or device is None:
        return report
    receipt = make_receipt(
        task,
        text,
        device,
        baseline,
        evaluation,
        policy=report.policy,
        seeds=notes.seeds,
        cost={"wall_s": round(sum(report.seconds.values()), 3)},
        command=command,
        isolation=report.isolation,
        seconds=report.seconds,
    )
    return replace(report, receipt=receipt)
