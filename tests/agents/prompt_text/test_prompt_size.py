"""A request to a chat model stays small: what benchmarks/prompts.py measures, for two tasks."""

from __future__ import annotations

import runpy
import statistics
from pathlib import Path

import pytest

MEASURE = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "prompts.py"))
MOST_TOKENS = 6_000  # of the median request of a task


@pytest.mark.parametrize("name", ["softmax", "gemm_bias_relu"])
async def test_the_median_request_of_a_task_is_below_six_thousand_tokens(name: str) -> None:
    """It was 7,400 for this softmax on a CPU: 1,400 of them were machinery that every file has."""
    found = []
    for device in MEASURE["DEVICES"]:
        brief = MEASURE["brief_of"](name, device)
        for step in (brief, *(other for _, other in MEASURE["later"](brief))):
            whole, _, sizes = await MEASURE["size"](step)
            found.append(whole)
            assert sizes["source"] + sizes.get("first", 0) < 2_000, (device.target, sizes)
    assert statistics.median(found) < MOST_TOKENS
