"""receipt.json: all that is needed to judge a result and to measure it again. Free of torch.

The document is versioned and has a published JSON Schema (`receipt.schema.json` beside this file). It carries the
digest of its own content, which shows a changed or damaged receipt. The digest is no signature: a forger can compute
it too. That is why a receipt is never believed: verifying it measures the pair anew and compares.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import foundry
from foundry.knowledge.candidate import Audit, Baseline, Contest, DistributionError, Evaluation, Stage, Timing, Verdict
from foundry.knowledge.device import Device
from foundry.knowledge.errors import NotComparable, UsageError
from foundry.knowledge.ruling import Ruling, rule
from foundry.knowledge.task import AccuracyClass, Policy, Task
from foundry.tools.process.linux import MEANS
from foundry.tools.protocol.rules import PROTOCOL_VERSION
from foundry.tools.task.plain_file import read_bytes

SCHEMA_VERSION = 2
SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"
MAX_BYTES = 16 << 20  # bytes; a larger file is no receipt
LEAST_SHARE = 0.9  # share of the claimed speedup that a new measurement must prove: a vague one confirms nothing

Confirmation = Literal["confirmed", "not confirmed"]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]


class ReceiptPart(BaseModel):
    """Unknown keys are refused: a receipt that says more than this version knows was written by another."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class TaskPart(ReceiptPart):
    """The task."""

    name: str
    sha256: Sha256
    """SHA-256 of the task file's bytes."""
    digest: Sha256
    """SHA-256 of the text, its options and its overrides."""
    overrides: dict[str, int]
    """Module constants that were set: `--scale N` sets SCALE."""
    options: dict[str, Any]
    """Settings in task.toml that differ from the defaults; the starting kernel is given by its name only."""


class DevicePart(ReceiptPart):
    """The device on which it was measured."""

    key: str
    """Receipts of the same key and architecture are comparable."""
    target: str
    name: str
    arch: str
    cores: int
    memory_bytes: int
    facts: dict[str, str]


class ErrorPart(ReceiptPart):
    """Errors against the float64 truth on one distribution of inputs; null is an infinite error or NaN."""

    distribution: str
    norm_error: float | None
    baseline_norm_error: float | None
    worst_violation: float | None
    """Largest elementwise error in units of the tolerance."""
    baseline_worst_violation: float | None


class GatePart(ReceiptPart):
    """One check with its evidence."""

    gate: str
    passed: bool
    evidence: str


class TimingPart(ReceiptPart):
    """Paired times, cold cache, against PyTorch eager."""

    baseline_ms: Positive
    candidate_ms: Positive
    speedup: Positive
    """Baseline over candidate."""
    speedup_ci95: Annotated[list[Positive], Field(min_length=2, max_length=2)]
    """Lower and upper end of the 95 % interval."""
    pairs: Annotated[int, Field(ge=1)]
    noise: float
    """Interquartile range over median of the baseline's own samples."""
    wall_ratio: float
    """The judge's own clock over what the candidate's process reported."""
    samples: list[Annotated[list[float], Field(min_length=2, max_length=2)]]
    """[baseline ms, candidate ms] of each pair."""
    compile_ms: float | None
    """torch.compile's time, if it could be timed: in separate turns, whose other times are in `compile_note`."""
    compile_speedup: float | None
    """Eager over torch.compile."""
    compile_note: str
    floor_ms: float | None
    """Roofline floor of the graph on this device."""
    fraction_of_floor: float | None


class Receipt(ReceiptPart):
    """The receipt of an accepted kernel: what was measured where and how, and the command that measures it again.

    `content_sha256` shows that the document was changed or damaged; it is no signature. Believe a new measurement.
    """

    schema_version: Literal[2]
    protocol: str
    """Version of the correctness and timing protocol; receipts of other versions are not comparable."""
    created: str
    """ISO 8601, UTC."""
    task: TaskPart
    candidate_sha256: Sha256
    """SHA-256 of the kernel file's bytes."""
    device: DevicePart
    software: dict[str, str]
    """Versions that a measurement depends on; another torch is not comparable."""
    isolation: list[str]
    """Means of the operating system that were active around the candidate's processes."""
    isolation_missing: list[str]
    """Means that this version knows and that were not available there."""
    policy: Policy
    stage: Stage
    """Extent of the checks: `full` by `foundry verify`, `final` by `foundry agent solve`."""
    accuracy_class: AccuracyClass | None
    outcome: Literal["correct"]
    errors: list[ErrorPart]
    gates: list[GatePart]
    """All checks: correctness, audit, timing."""
    labels: list[str]
    """Allowed practices that the kernel uses, and remarks on the task that belong beside the result."""
    judgement: str
    timing: TimingPart
    seeds: dict[str, int]
    """Every seed that was drawn, by its purpose. A new measurement draws fresh ones."""
    seconds: dict[str, Seconds]
    """Time that each step of this measurement took."""
    cost: dict[str, float]
    """Seconds of the whole command by kind; for a search also evaluations, tokens and dollars."""
    command: str
    """Measures it again and compares, from the same folder."""
    content_sha256: Sha256
    """SHA-256 of all other fields as JSON with sorted keys, no spaces, ASCII. It is no signature."""


def make_receipt(
    task: Task,
    text: str,
    device: Device,
    baseline: Baseline,
    evaluation: Evaluation,
    *,
    policy: Policy,
    seeds: Mapping[str, int],
    cost: Mapping[str, float],
    command: str,
    isolation: Sequence[str] = (),
    seconds: Mapping[str, float] | None = None,
    contest: Contest | None = None,
) -> Receipt:
    """The receipt of an evaluation that was accepted; raises UsageError for any other.

    `seconds` by step, by default from the records themselves. `contest`: the baseline comparison, if torch.compile
    was timed too.
    """
    ruling = rule(evaluation, degenerate=baseline.degenerate)
    verdict, audit, timing = _records_of(evaluation, ruling)
    split = seconds or {"build": evaluation.build.seconds, "verify": verdict.seconds, "time": timing.seconds}
    content = {
        "schema_version": SCHEMA_VERSION,
        "protocol": PROTOCOL_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "task": _task_part(task).model_dump(mode="json"),
        "candidate_sha256": sha256(text),
        "device": _device_part(device).model_dump(mode="json"),
        "software": software(),
        "isolation": list(isolation),
        "isolation_missing": missing_means(isolation),
        "policy": policy,
        "stage": timing.stage,
        "accuracy_class": verdict.accuracy_class,
        "outcome": verdict.outcome,
        "errors": [_error_fields(error) for error in verdict.errors],
        "gates": [gate.shown for gate in (*verdict.gates, *audit.gates, *ruling.gates)],
        "labels": list(audit.labels),
        "judgement": ruling.judgement,
        "timing": _timing_fields(timing, contest, evaluation),
        "seeds": dict(seeds),
        "seconds": {name: round(value, 3) for name, value in split.items()},
        "cost": dict(cost),
        "command": command.encode(errors="replace").decode(),  # a file's name may not be UTF-8
    }
    draft = Receipt.model_validate({**content, "content_sha256": "0" * 64})
    return draft.model_copy(update={"content_sha256": content_digest(draft.model_dump(mode="json"))})


def _records_of(evaluation: Evaluation, ruling: Ruling) -> tuple[Verdict, Audit, Timing]:
    """The records that a receipt needs; raises UsageError if one is missing or the candidate was not accepted."""
    verdict, audit, timing = evaluation.verdict, evaluation.audit, evaluation.timing
    if verdict is None or audit is None or timing is None or not ruling.accepted:
        raise UsageError("only a candidate that was verified, audited, timed and accepted has a receipt")
    if not math.isfinite(timing.speedup_ci95[1]):
        raise UsageError("a timing of so few pairs has no interval, so there is no receipt")
    return verdict, audit, timing


def missing_means(isolation: Sequence[str]) -> list[str]:
    """Known means of isolation that are not among the active ones."""
    return [name for name in MEANS if name not in isolation]


def content_digest(document: Mapping[str, Any]) -> str:
    """sha256 of a receipt's fields without `content_sha256`, as JSON with sorted keys, no spaces, ASCII."""
    content = {name: value for name, value in document.items() if name != "content_sha256"}
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")))


def _timing_fields(timing: Timing, contest: Contest | None, evaluation: Evaluation) -> dict[str, Any]:
    """The receipt's timing part as a dictionary."""
    compiled = contest.rival("compile") if contest else None
    floor_ms = evaluation.profile.floor_ms or None if evaluation.profile else None
    return {
        "baseline_ms": timing.baseline_ms,
        "candidate_ms": timing.candidate_ms,
        "speedup": timing.speedup,
        "speedup_ci95": list(timing.speedup_ci95),
        "pairs": timing.pairs,
        "noise": timing.noise,
        "wall_ratio": timing.wall_ratio,
        "samples": timing.samples,
        "compile_ms": compiled.ms if compiled else None,
        "compile_speedup": compiled.over_baseline if compiled else None,
        "compile_note": "; ".join(filter(None, [contest.told_beside("compile"), *contest.notes])) if contest else "",
        "floor_ms": floor_ms,
        "fraction_of_floor": floor_ms / timing.candidate_ms if floor_ms else None,
    }


def _error_fields(error: DistributionError) -> dict[str, Any]:
    """The receipt's errors of one distribution; an infinite error becomes null, because JSON has no infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in vars(error).items()
    }


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Writes the document whole or not at all; raises UsageError if the place cannot be written."""
    check_writable(path)
    body = json.dumps(receipt.model_dump(mode="json"), indent=2) + "\n"
    partial = path.with_name(f".{path.name[:200]}-{os.getpid()}.part")
    try:
        partial.write_text(body)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"the receipt cannot be written: {error}") from error


def check_writable(path: Path) -> None:
    """Raises UsageError if no receipt can be written there: better before a measurement than after it."""
    if not path.parent.is_dir():
        raise UsageError(f"the receipt cannot be written: there is no folder {path.parent}")
    if os.path.lexists(path) and not path.is_file():
        raise UsageError(f"the receipt cannot be written: {path} is no regular file")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"the receipt cannot be written: {path.parent} is read-only")


def read_receipt(path: Path) -> Receipt:
    """The receipt in a file. Raises UsageError if it is no receipt or was changed, NotComparable for another
    version."""
    content = _parse(read_bytes(path, largest_bytes=MAX_BYTES), path)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise NotComparable(f"{path.name} has schema version {version}, this is {SCHEMA_VERSION}")
    try:
        receipt = Receipt.model_validate(content)
        digest = content_digest(receipt.model_dump(mode="json"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part)[:60] for part in first["loc"]) or "the document"
        raise UsageError(f"{path.name} is not a valid receipt: {where}: {first['msg']}") from None
    except (ValueError, RecursionError):  # nesting or a number beyond any receipt
        raise UsageError(f"{path.name} is not a valid receipt: it cannot be read as one") from None
    if digest != receipt.content_sha256:
        raise UsageError(f"{path.name} was changed after it was written: its content has another sha256")
    return receipt


def _parse(body: bytes, path: Path) -> Any:
    """The JSON value in the bytes. Raises UsageError if they are not strict JSON."""
    try:
        return json.loads(body, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path.name} is not a receipt: {str(error)[:200]}") from None


def _no_constant(name: str) -> None:
    """Raises ValueError: NaN and Infinity are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises ValueError for a repeated name, which readers would resolve differently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def receipt_schema() -> dict[str, Any]:
    """The published JSON Schema of receipt.json."""
    return {"$schema": SCHEMA_ID, **Receipt.model_json_schema()}


def check_same_pair(receipt: Receipt, task: Task, text: str) -> str:
    """Says how the files at hand differ from those of the receipt; "" if they are the same."""
    if sha256(text) != receipt.candidate_sha256:
        return (
            f"the kernel is not the receipt's: its sha256 is {sha256(text)[:16]}, not {receipt.candidate_sha256[:16]}"
        )
    if sha256(task.source) != receipt.task.sha256:
        return f"the task is not the receipt's: its sha256 begins {sha256(task.source)[:16]}"
    if _task_part(task) != receipt.task:
        return "the task's options or overrides are not the receipt's"
    return ""


def check_comparable(receipt: Receipt, device: Device) -> None:
    """Raises NotComparable if a new measurement here would say nothing about the receipt."""
    if receipt.protocol != PROTOCOL_VERSION:
        raise NotComparable(f"the receipt follows protocol {receipt.protocol}, this is {PROTOCOL_VERSION}")
    theirs, ours = (receipt.device.key, receipt.device.arch), (device.key, device.arch)
    if theirs != ours:
        raise NotComparable(f"the receipt is from {' '.join(theirs)}, this is {' '.join(ours)}")
    if not device.present:
        raise NotComparable(f"the receipt is from {device.key}, which is not here")
    their_torch, our_torch = receipt.software.get("torch", ""), software()["torch"]
    if their_torch != our_torch:
        raise NotComparable(f"the receipt's baseline is PyTorch {their_torch}, here it is {our_torch}")


def compare(
    receipt: Receipt, speedup: float, interval: tuple[float, float], accuracy_class: str | None = None
) -> tuple[Confirmation, str]:
    """Compares a new measurement with the receipt's claim; returns the standing and a sentence that explains it.

    The claim is "at least this fast": the lower end of the receipt's 95 % interval. The new measurement confirms it
    if its own interval reaches up to the claim, and if it proves at least `LEAST_SHARE` of it. The first alone would
    let a measurement on a busy machine, whose interval is wide, confirm anything; the second alone would let a
    kernel that is surely slower pass. Being faster than claimed is no objection. Of honest kernels on an unchanged
    machine the first rule refuses one in some 350 (two independent 95 % intervals that do not meet, on one side).
    """
    claim = receipt.timing.speedup_ci95[0]
    words = (
        f"receipt {receipt.timing.speedup:.3f}x ({claim:.3f} to {receipt.timing.speedup_ci95[1]:.3f}), "
        f"measured now {speedup:.3f}x ({interval[0]:.3f} to {interval[1]:.3f})"
    )
    if receipt.accuracy_class == "ieee" and accuracy_class == "tf32":
        return "not confirmed", f"the receipt claims accuracy class ieee, found now is tf32; {words}"
    if interval[1] < claim:
        return "not confirmed", f"slower than claimed: {words}"
    if interval[0] < LEAST_SHARE * claim:
        return "not confirmed", f"too uncertain here to tell, measure on a quiet machine: {words}"
    return "confirmed", words


def sha256(text: str) -> str:
    """Hexadecimal SHA-256 of the text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def software() -> dict[str, str]:
    """Versions of Foundry, torch, Python and the system, on which a measurement depends."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    return {
        "foundry": foundry.__version__,
        "torch": torch,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _task_part(task: Task) -> TaskPart:
    """The receipt's task part. The starting kernel counts only by its name: its folder and text change no
    measurement."""
    options = json.loads(json.dumps({key: value for key, value in vars(task.options).items() if value}))
    if "start" in options:
        options["start"] = Path(options["start"]).name
    return TaskPart(
        name=task.name,
        sha256=sha256(task.source),
        digest=sha256(json.dumps([task.source, options, task.overrides], sort_keys=True)),
        overrides=task.overrides,
        options=options,
    )


def _device_part(device: Device) -> DevicePart:
    """The device's part of a receipt."""
    return DevicePart(
        key=device.key,
        target=device.target,
        name=device.name,
        arch=device.arch,
        cores=device.cores,
        memory_bytes=device.memory_bytes,
        facts=device.facts,
    )
