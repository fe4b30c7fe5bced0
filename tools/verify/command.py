"""Runs `foundry verify` from parsed arguments: the pair, the receipt, one JSON document, one exit code."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foundry.knowledge.device import TargetName
from foundry.knowledge.errors import FoundryError, UsageError
from foundry.knowledge.task import OWN_PARAMETERS, REFERENCE_ELSEWHERE, OtherShapes, ParametersUsed, Policy, Task
from foundry.tools.machine.device import describe
from foundry.tools.task.file import read_task
from foundry.tools.task.plain_file import read_kernel
from foundry.tools.verify.receipt import (
    Receipt,
    check_comparable,
    check_same_pair,
    check_writable,
    compare,
    read_receipt,
    write_receipt,
)
from foundry.tools.words import to_paste

if TYPE_CHECKING:
    from foundry.tools.verify.verify import VerifyReport


@dataclass(frozen=True)
class VerifyRequest:
    """The arguments of `foundry verify`. `seed` None draws an unpredictable one, so that no candidate can prepare
    for the inputs."""

    task: Path
    candidate: Path
    receipt: Path | None = None
    target: TargetName | Literal["auto"] = "auto"
    policy: Policy | None = None
    scale: int | None = None
    seed: int | None = None
    min_speedup: float = 0.0
    compiled: bool = False
    write_receipt: Path | None = None
    model: str = ""  # the name of the model's class, if the user gave it
    parameters: ParametersUsed | None = None
    other_shapes: OtherShapes | None = None


def run(request: VerifyRequest) -> tuple[dict[str, Any], int]:
    """Verifies the pair; returns the JSON document and the exit code: 0 accepted (or confirmed), 1 not.

    Raises FoundryError with the exit code of its kind: 1 for a pair that is not the receipt's, 2 for bad input, 3
    without a device or compiler, 4 for a receipt that cannot be compared with here.
    """
    claimed = read_receipt(request.receipt) if request.receipt else None
    if request.write_receipt:
        check_writable(request.write_receipt)
    known = read_task(
        request.task,
        scale=_scale(request, claimed),
        model=_model(request, claimed),
        other_shapes=_other_shapes(request, claimed),
    )
    task = replace(known, parameters=_parameters(request, claimed))
    text = read_kernel(request.candidate)
    if claimed is not None:
        _check_claim(request, claimed, task, text)
    policy = request.policy or (claimed.policy if claimed else None)
    if task.parameters == "as-built" and (policy or task.options.policy) == "strict":
        raise UsageError("--parameters as-built: policy strict asks for kernels that take the reference's parameters")
    from foundry.tools.verify.verify import verify_pair  # takes half a second: imported only once the files are read

    report = verify_pair(
        task,
        text,
        policy=policy,
        target=claimed.device.target if claimed else request.target,
        seed=secrets.randbits(32) if request.seed is None else request.seed,
        stage="final" if claimed and claimed.stage == "final" else "full",  # the claimed interval was as narrow
        with_compile=request.compiled,
        command=command_line(request, task),
    )
    if request.write_receipt and report.receipt:
        write_receipt(request.write_receipt, report.receipt)
    proven = report.speedup_ci95[0] if report.speedup_ci95 else 0.0
    is_enough = report.verdict == "accepted" and proven >= request.min_speedup
    if claimed is None:
        return report.to_json(), 0 if is_enough else 1
    standing, words = _confirm(claimed, report)
    document = {**report.to_json(), "standing": standing, "standing_evidence": words}
    return document, 0 if is_enough and standing == "confirmed" else 1


def command_line(request: VerifyRequest, task: Task) -> str:
    """The command that measures a receipt's pair again and compares, from the folder in which this was called."""
    words = ["foundry", "verify", str(request.task), str(request.candidate)]
    if request.write_receipt:
        words += ["--receipt", str(request.write_receipt)]
    else:
        words += ["--target", request.target, *(["--policy", request.policy] if request.policy else [])]
    words += ["--parameters", task.parameters] if task.parameters != "loaded" else []
    words += ["--other-shapes", task.other_shapes] if task.other_shapes != "raise" and not request.write_receipt else []
    if "SCALE" in task.overrides:
        words += ["--scale", str(task.overrides["SCALE"])]
    if request.model and not request.write_receipt:  # a receipt holds the class's name
        words += ["--class", request.model]
    return to_paste(*words)


def _scale(request: VerifyRequest, claimed: Receipt | None) -> int | None:
    """The task's scale: from the command, else from the receipt."""
    if request.scale is None and claimed is not None:
        return claimed.task.overrides.get("SCALE")
    return request.scale


def _model(request: VerifyRequest, claimed: Receipt | None) -> str:
    """The model's class name: from the command, else from the receipt."""
    return request.model or str(claimed.task.options.get("model", "") if claimed else "")


def _parameters(request: VerifyRequest, claimed: Receipt | None) -> ParametersUsed:
    """Parameters used: from the command, else from the receipt's labels. Raises UsageError if they differ."""
    of_receipt: ParametersUsed = "as-built" if claimed is not None and OWN_PARAMETERS in claimed.labels else "loaded"
    if claimed is not None and request.parameters not in (None, of_receipt):
        raise UsageError(f"--parameters {request.parameters}: the receipt was made with parameters {of_receipt}")
    return request.parameters or of_receipt


def _other_shapes(request: VerifyRequest, claimed: Receipt | None) -> OtherShapes | None:
    """The treatment of other shapes: from the command, else from the receipt's labels; None if neither says it."""
    of_receipt: OtherShapes = "reference" if claimed is not None and REFERENCE_ELSEWHERE in claimed.labels else "raise"
    return request.other_shapes or (of_receipt if claimed else None)


def _check_claim(request: VerifyRequest, claimed: Receipt, task: Task, text: str) -> None:
    """Raises FoundryError if the files, the target, the policy or the machine are not those of the receipt."""
    if changed := check_same_pair(claimed, task, text):
        raise FoundryError(f"not confirmed: {changed}")
    if request.target not in ("auto", claimed.device.target):
        raise UsageError(f"--target {request.target}: the receipt is for {claimed.device.target}")
    if request.policy not in (None, claimed.policy):
        raise UsageError(f"--policy {request.policy}: the receipt was made under {claimed.policy}")
    check_comparable(claimed, describe(claimed.device.target))


def _confirm(claimed: Receipt, report: VerifyReport) -> tuple[str, str]:
    """(standing, sentence) of the receipt's claim after a new measurement."""
    if report.verdict != "accepted" or report.speedup is None or report.speedup_ci95 is None:
        first = report.reasons[0] if report.reasons else None
        return "not confirmed", f"{report.verdict} here{f': {first.gate}: {first.evidence}' if first else ''}"
    return compare(claimed, report.speedup, report.speedup_ci95, report.accuracy_class)
