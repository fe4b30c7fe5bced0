"""A verification report in words, for a terminal."""

from __future__ import annotations

from typing import Any


def verdict_lines(document: dict[str, Any]) -> list[str]:
    """The lines for a document of `VerifyReport.to_json`."""
    lines = [f"{document['verdict']} on {document['device']} (policy {document['policy']})"]
    lines += [f"  {reason['gate']}: {reason['evidence']}" for reason in document["reasons"]]
    if document["speedup"] is not None:
        low, high = document["speedup_ci95"]
        lines.append(
            f"{document['speedup']:.2f}x PyTorch eager, 95 % interval {low:.2f} to {high:.2f}"
            f" ({document['candidate_ms']:.4f} ms against {document['baseline_ms']:.4f} ms)"
        )
    if document["labels"]:
        lines.append("labels: " + ", ".join(document["labels"]))
    if "standing" in document:
        lines.append(f"{document['standing']}: {document['standing_evidence']}")
    split = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in document["seconds"].items())
    return [*lines, f"{sum(gate['passed'] for gate in document['gates'])} gates passed; {split}"]
