"""Reads a worker's answers in the main process: records, errors, and how a process ended. Free of torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from foundry.knowledge import codec
from foundry.knowledge.candidate import Baseline, Gate, Outcome, Stage, Timing, Verdict
from foundry.knowledge.errors import (
    FoundryError,
    MissingTool,
    NotComparable,
    RandomTask,
    TaskError,
    TooLarge,
    UsageError,
)
from foundry.tools.process.channel import Message
from foundry.tools.process.messages import A, NotDone, Question
from foundry.tools.process.zygote import Worker, WorkerDied
from foundry.tools.profiling.gather import Seen
from foundry.tools.protocol.orders import DECISION, NOT_ASKED, ONE_SIDED, PROCESSES
from foundry.tools.task.limits import GIGABYTES, SECONDS, TimeLimits

FEW_NAMES = 4  # names of questions that a label lists; the verdict names all
OUTCOMES: dict[str, Outcome] = {
    "timeout": "timeout",
    "cheating": "cheating",
    "not_allowed": "not_allowed",
    "not_judged": "not_judged",
    "launch_failure": "launch_failure",
    "compile_error": "compile_error",
    "wrong_result": "wrong_result",
}

Record = TypeVar("Record")
_ERRORS: dict[str, type[FoundryError]] = {
    "TaskError": TaskError,
    "RandomTask": RandomTask,
    "TooLarge": TooLarge,
    "UsageError": UsageError,
    "MissingTool": MissingTool,
    "NotComparable": NotComparable,
}


@dataclass
class Notes:
    """Facts that evaluations yield besides their records. Keys are digests of candidates' texts."""

    operators: dict[str, list[Any]] = field(default_factory=dict)
    phases: dict[str, dict[str, float]] = field(default_factory=dict)  # seconds by judge's command
    seen: dict[str, Seen] = field(default_factory=dict)  # where a forward's time goes
    seeds: dict[str, int] = field(default_factory=dict)  # a purpose's seed
    isolation: tuple[str, ...] = ()  # the system's means that are active around candidates


def declared_labels(baseline: Baseline, verdict: Verdict, audited: Sequence[Gate] = ()) -> list[str]:
    """Labels of an accepted kernel that say how it was judged; none for an incorrect one.

    They name the question that sets the tolerance, the questions left out for lack of time or memory, and the task's
    lines that went the same way for all questions. Gates of the verdict and of the audit's own runs (`audited`) both
    count.
    """
    if not verdict.correct:
        return []
    found = [baseline.label] if baseline.label else []
    for what in ("time", "memory"):
        gates = (*verdict.gates, *audited)
        names = [gate.gate for gate in gates if gate.evidence.startswith(f"{NOT_ASKED} {what}")]
        if names:
            listed = ", ".join(names) if len(names) <= FEW_NAMES else f"{len(names)} questions"
            found.append(f"not-asked:{listed} ({what})")
    lines = [gate.gate.removeprefix(f"{DECISION} ") for gate in verdict.gates if gate.evidence.startswith(ONE_SIDED)]
    return found + (
        [f"one-sided:{line}" for line in lines] if len(lines) <= FEW_NAMES else [f"one-sided:{len(lines)} lines"]
    )


def no_timing(stage: Stage, problem: str, seconds: float = 0.0, *, outcome: Outcome = "unproven") -> Timing:
    """The record of a candidate that could not be timed."""
    return Timing(
        stage=stage,
        candidate_ms=0.0,
        baseline_ms=0.0,
        speedup=0.0,
        speedup_ci95=(0.0, 0.0),
        pairs=0,
        noise=0.0,
        wall_ratio=1.0,
        seconds=seconds,
        problem=problem,
        outcome=outcome,
    )


def ask_again(ask: Callable[[], Record], is_doubtful: Callable[[Record], bool], looks: int = 2) -> Record:
    """The answer to a question about a candidate, each time of fresh processes. One that is doubtful, because a busy
    machine gives it too now and then, is asked for again, up to `looks` times: a cheat shows each time."""
    answer = ask()
    for _ in range(looks - 1):
        if not is_doubtful(answer):
            break
        answer = ask()
    return answer


def are_doubtful(gates: Iterable[Gate]) -> bool:
    """True if the only failed gate is PROCESSES: CPU time of a process that should have been idle."""
    failed = [gate.gate for gate in gates if not gate.passed]
    return bool(failed) and set(failed) == {PROCESSES}


def decode_record(kind: type[Record], item: Any) -> Record:
    """A record of `kind` from its decoded JSON in a judge's answer."""
    return codec.decode(kind, json.dumps(item))


def digest_of(text: str) -> str:
    """SHA-256 of a candidate's text in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def ask_about_task(
    worker: Worker, message: Message, limit_s: float, handles: Sequence[int] = (), *, limits: TimeLimits | None = None
) -> Message:
    """Sends a request that runs only the task's own code, so that its failure is the task's: raises TaskError. `limits`
    extend `limit_s` when the worker says how long a forward takes."""
    limits = limits or TimeLimits()
    with deaths_of_the_task(limits):
        answer, _ = worker.request(message, handles, timeout_s=limit_s, extend=limits.read_measurement)
    raise_error(answer)
    if "failed" in answer:
        raise TaskError(f"the reference failed: {answer['failed'][1]}")
    return answer


def ask_intake(worker: Worker, question: Question[A], limit_s: float, limits: TimeLimits) -> A:
    """The answer of a process that runs the task; raises TaskError as `ask_about_task` does."""
    with deaths_of_the_task(limits):
        found, _ = worker.ask(question, timeout_s=limit_s, extend=limits.read_measurement)
    if isinstance(found, NotDone):
        raise error_of(found.kind, found.line, found.remedy)
    return found.answer


@contextlib.contextmanager
def deaths_of_the_task(limits: TimeLimits) -> Iterator[None]:
    """Turns the death of a process that ran the task into a TaskError."""
    try:
        yield
    except WorkerDied as died:
        if died.outcome == "timeout":
            how = limits.measured or "its import, inputs and first forward"
            problem = f"the task {died.evidence} ({how})"
            raise TaskError(problem, f"make it smaller or set {SECONDS} to more seconds") from died
        if "memory" in died.evidence:
            raise TaskError(f"the task {died.evidence}", f"make its sizes smaller or set {GIGABYTES}") from died
        raise TaskError(f"the process that ran the task {died.evidence}") from died


def raise_error(answer: Message) -> None:
    """Raises the error in an answer's "error" (kind, problem, remedy), as FoundryError if its kind is unknown; else
    returns."""
    if "error" in answer:
        raise error_of(*answer["error"])


def error_of(kind: str, problem: str, remedy: str) -> FoundryError:
    """The error of a kind that another process names."""
    return _ERRORS.get(kind, FoundryError)(problem, remedy)


def problem_in(answer: Message, ended: str) -> str:
    """The reason why an answer has no result; `ended` says how the candidate's process ended."""
    return name_death(str(answer.get("failed", ["", ended])[1]), ended)


def name_death(evidence: str, ended: str) -> str:
    """The evidence with "the process died" replaced by how it ended."""
    return evidence.replace("the process died", f"the process {ended}")
