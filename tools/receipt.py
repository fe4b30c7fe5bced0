"""receipt.json: everything somebody needs to judge a result, and to measure it again. Free of torch.

The document is versioned and has a published JSON Schema (`receipt_schema`). A receipt is never believed: verifying it
measures the pair anew and compares.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

import foundry
from foundry.knowledge.candidate import Baseline, Evaluation
from foundry.knowledge.device import Device
from foundry.knowledge.errors import NotComparable, UsageError
from foundry.knowledge.task import Policy, Task
from foundry.tools.protocol import PROTOCOL_VERSION

SCHEMA_VERSION = 1
MAX_BYTES = 64 << 20

Standing = Literal["confirmed", "not confirmed"]


class Part(BaseModel):
    """Unknown keys are refused: a receipt that says more than this version knows was written by another."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskPart(Part):
    name: str
    sha256: str
    """Of the task file's text."""
    digest: str
    """Of the text and its options."""
    overrides: dict[str, int]
    options: dict[str, Any]


class DevicePart(Part):
    key: str
    target: str
    name: str
    arch: str
    cores: int
    memory_bytes: int
    facts: dict[str, str]


class ErrorPart(Part):
    distribution: str
    norm_error: float
    baseline_norm_error: float
    worst_violation: float
    baseline_worst_violation: float


class GatePart(Part):
    gate: str
    passed: bool
    evidence: str


class TimingPart(Part):
    baseline_ms: float
    candidate_ms: float
    speedup: float
    speedup_ci95: tuple[float, float]
    pairs: int
    noise: float
    wall_ratio: float
    samples: list[list[float]]
    """[baseline ms, candidate ms] of each pair."""
    compile_ms: float | None
    """torch.compile's, where it could be timed."""
    compile_speedup: float | None
    """Eager over torch.compile."""
    compile_note: str
    floor_ms: float | None
    """Roofline floor of the graph on this device."""
    fraction_of_floor: float | None


class Receipt(Part):
    """The document."""

    schema_version: int = SCHEMA_VERSION
    protocol: str = PROTOCOL_VERSION
    created: str
    task: TaskPart
    candidate_sha256: str
    device: DevicePart
    software: dict[str, str]
    policy: str
    accuracy_class: str | None
    outcome: str
    errors: list[ErrorPart]
    gates: list[GatePart]
    """Of correctness, then of the audit."""
    labels: list[str]
    judgement: str
    timing: TimingPart
    seeds: dict[str, int]
    cost: dict[str, float]
    """Seconds by kind, and tokens and dollars where a model was used."""
    command: str
    """Measures it again."""


def make_receipt(
    task: Task,
    text: str,
    device: Device,
    baseline: Baseline,
    evaluation: Evaluation,
    *,
    policy: Policy,
    seeds: dict[str, int],
    cost: dict[str, float],
    command: str,
) -> Receipt:
    """The receipt of an evaluation that was verified, audited and timed; raises UsageError for any other."""
    verdict, audit, timing = evaluation.verdict, evaluation.audit, evaluation.timing
    if verdict is None or audit is None or timing is None:
        raise UsageError("only a candidate that was verified, audited and timed has a receipt")
    floor_ms = evaluation.profile.floor_ms if evaluation.profile else baseline.floor_ms
    return Receipt(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        task=_task_part(task),
        candidate_sha256=sha256(text),
        device=_device_part(device),
        software=software(),
        policy=policy,
        accuracy_class=verdict.accuracy_class,
        outcome=verdict.outcome,
        errors=[ErrorPart(**vars(error)) for error in verdict.errors],
        gates=[GatePart(**vars(gate)) for gate in (*verdict.gates, *audit.gates)],
        labels=list(audit.labels),
        judgement=audit.judgement,
        timing=TimingPart(
            baseline_ms=timing.baseline_ms,
            candidate_ms=timing.candidate_ms,
            speedup=timing.speedup,
            speedup_ci95=timing.speedup_ci95,
            pairs=timing.pairs,
            noise=timing.noise,
            wall_ratio=timing.wall_ratio,
            samples=timing.samples,
            compile_ms=baseline.compile_ms,
            compile_speedup=baseline.compile_speedup,
            compile_note=baseline.compile_note,
            floor_ms=floor_ms,
            fraction_of_floor=floor_ms / timing.candidate_ms if floor_ms and timing.candidate_ms else None,
        ),
        seeds=seeds,
        cost=cost,
        command=command,
    )


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Writes the document whole or not at all; raises UsageError when the place cannot be written."""
    body = json.dumps(receipt.model_dump(mode="json"), indent=2) + "\n"
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "w") as file:
            file.write(body)
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    except OSError as error:
        raise UsageError(f"the receipt cannot be written: {error}") from error


def read_receipt(path: Path) -> Receipt:
    """The document; raises UsageError in one line for anything that is none, NotComparable for another version."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path.name} is larger than a receipt can be")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path.name} is not a receipt: {str(error)[:200]}") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise NotComparable(f"{path.name} has schema version {version}, this is {SCHEMA_VERSION}")
    try:
        return Receipt.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise UsageError(f"{path.name} is not a valid receipt: {where}: {first['msg']}") from error


def receipt_schema() -> dict[str, Any]:
    """The published JSON Schema of receipt.json."""
    return Receipt.model_json_schema()


def check_same_pair(receipt: Receipt, task: Task, text: str) -> str:
    """Why the files at hand are not those of the receipt, or ""."""
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
    """Raises NotComparable when a new measurement here would say nothing about the receipt."""
    if receipt.protocol != PROTOCOL_VERSION:
        raise NotComparable(f"the receipt follows protocol {receipt.protocol}, this is {PROTOCOL_VERSION}")
    if receipt.device.key != device.key:
        raise NotComparable(f"the receipt is from {receipt.device.key}, this is {device.key}")
    theirs, ours = receipt.software.get("torch", ""), software()["torch"]
    if theirs != ours:
        raise NotComparable(f"the receipt's baseline is PyTorch {theirs}, here it is {ours}")


def compare(receipt: Receipt, speedup: float, interval: tuple[float, float]) -> tuple[Standing, str]:
    """Whether a new measurement supports the receipt's claim, and the sentence that says so.

    Confirmed: the new interval reaches the lower end of the receipt's. Being faster than claimed is no objection.
    """
    low, high = receipt.timing.speedup_ci95
    words = (
        f"receipt {receipt.timing.speedup:.3f}x ({low:.3f} to {high:.3f}), "
        f"measured now {speedup:.3f}x ({interval[0]:.3f} to {interval[1]:.3f})"
    )
    return ("confirmed" if interval[1] >= low else "not confirmed"), words


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def software() -> dict[str, str]:
    """Versions that a measurement depends on."""
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
    options = json.loads(json.dumps({key: value for key, value in vars(task.options).items() if value}))
    return TaskPart(
        name=task.name,
        sha256=sha256(task.source),
        digest=task.digest,
        overrides=task.overrides,
        options=options,
    )


def _device_part(device: Device) -> DevicePart:
    return DevicePart(
        key=device.key,
        target=device.target,
        name=device.name,
        arch=device.arch,
        cores=device.cores,
        memory_bytes=device.memory_bytes,
        facts=device.facts,
    )
