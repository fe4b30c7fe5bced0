"""Warns in a prompt that the machine had other work during timings, and says which numbers still compare."""

from __future__ import annotations

from collections.abc import Sequence

from foundry.knowledge.candidate import Baseline, Timing

NOISY = 0.1  # interquartile range of eager's times over their median; a quiet machine stays below it
DRIFTED = 1.25  # ratio of eager's slowest to its fastest median


def load_words(baseline: Baseline, timings: Sequence[Timing]) -> str:
    """A sentence if eager's own times drift or spread so much that the machine has other work; else ""."""
    known = [timing for timing in timings if not timing.problem and timing.baseline_ms > 0]
    read = [baseline.eager_ms, *(timing.baseline_ms for timing in known)]
    spread = max((timing.noise for timing in known), default=0.0)
    slow, fast = max(read), min(read)
    if not known or fast <= 0 or (spread < NOISY and slow < DRIFTED * fast):
        return ""
    return (
        f"The machine has other work: eager read {fast:.4g} to {slow:.4g} ms in this run, and spreads by up to "
        f"{100 * spread:.0f} % within one timing. Times of different moments do not compare; speeds over eager in the "
        "same turns do, within their intervals."
    )
