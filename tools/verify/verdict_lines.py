"""Writes a verification report in words, for a terminal."""

from __future__ import annotations

from typing import Any

from foundry.knowledge.reasons import WORDS
from foundry.tools.protocol.orders import LEADS, NO_LEADS, ONE_SIDED
from foundry.tools.words import make_printable

STEPS = {  # names of `seconds` in a report -> their words
    "open": "start",
    "intake": "task",
    "build": "compiling",
    "baseline": "PyTorch's time",
    "verify": "correctness",
    "time": "timing",
    "profile": "profiling",
    "close": "end",
}
ACCURACY = {"ieee": "float32 arithmetic in full", "tf32": "products of float32 in 11 significant bits"}


def verdict_lines(document: dict[str, Any]) -> list[str]:
    """The lines for a document of `VerifyReport.to_json`: verdict, reasons, speed, gates and isolation, time taken."""
    refusal = WORDS.get(document["outcome"], "") if document["verdict"] == "rejected" else ""
    why = f": {refusal}" if refusal else ""
    lines = [f"{document['verdict']} on {document['device']} (policy {document['policy']}){why}"]
    lines += [f"  {reason['gate']}: {reason['evidence']}" for reason in document["reasons"]]
    if document["reasons"]:
        lines += [f"  beside it, {gate['gate']}: {gate['evidence']}" for gate in document["gates"] if _is_lead(gate)]
    if document["speedup"] is not None:
        low, high = document["speedup_ci95"]
        lines.append(
            f"{document['speedup']:.2f}x the speed of PyTorch eager, 95 % interval {low:.2f} to {high:.2f}"
            f" ({document['candidate_ms']:.4f} ms against {document['baseline_ms']:.4f} ms)"
        )
    if document["compile_speedup"] is not None:
        lines.append(
            f"torch.compile: {document['compile_speedup']:.2f}x the speed of PyTorch eager ({document['compile_note']})"
        )
    if document["accuracy_class"]:
        lines.append(f"accuracy class: {document['accuracy_class']} ({ACCURACY[document['accuracy_class']]})")
    if document["labels"]:
        lines.append("allowed practices that it uses (labels): " + ", ".join(document["labels"]))
    lines += [f"  {gate['gate']}: {gate['evidence']}" for gate in document["gates"] if _is_one_sided(gate)]
    if "standing" in document:
        lines.append(f"{document['standing']}: {document['standing_evidence']}")
    return [
        make_printable(line) if not line.startswith("  ") else f"  {make_printable(line)}"
        for line in [*lines, *_how(document)]
    ]


def _is_lead(gate: dict[str, Any]) -> bool:
    """True for a passed gate that still names leads."""
    return bool(gate["gate"] == LEADS and gate["passed"] and gate["evidence"] != NO_LEADS)


def _is_one_sided(gate: dict[str, Any]) -> bool:
    """True for a line of the task that went the same way for all questions, so that a kernel may know that way only."""
    return bool(gate["evidence"].startswith(ONE_SIDED))


def _how(document: dict[str, Any]) -> list[str]:
    """Lines on passed gates, active means of isolation and the time of each step."""
    gates = document["gates"]
    lines = [f"checks (gates): {sum(gate['passed'] for gate in gates)} of {len(gates)} passed"] if gates else []
    if document["isolation"]:
        missing = "; not active: " + ", ".join(document["isolation_missing"]) if document["isolation_missing"] else ""
        lines.append("isolation: " + ", ".join(document["isolation"]) + missing)
    if document["seconds"]:
        spent = {STEPS.get(name, name): seconds for name, seconds in document["seconds"].items()}
        split = ", ".join(f"{name} {seconds:.1f}" for name, seconds in spent.items() if seconds >= 0.05)
        lines.append(f"time: {document['wall_s']:.1f} s ({split})")
    return lines
