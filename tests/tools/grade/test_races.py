"""Threads that use the same memory at the same time are found although each call is short."""

from __future__ import annotations

from pathlib import Path

from foundry.tools.grade.host.workbench import open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.selftest.faults import on_source
from foundry.tools.selftest.faults.original import original_of
from foundry.tools.targets.registry import target_of
from foundry.tools.task.file import read_task

TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, 1)

def get_inputs():
    return [torch.randn(64, 1000)]
"""


async def test_threads_that_share_a_buffer_are_found_in_short_calls(zygote: Zygote, tmp_path: Path) -> None:
    """Half of the rows take some 25 us: a thread that must be woken for them comes when the other one is done, and 1 of
    100 calls is wrong. In a user's process, whose threads wait awake, nearly all are. Beside other work the two may
    miss each other in a whole verification, but hardly in five."""
    path = tmp_path / "softmax.py"
    path.write_text(TASK)
    task, device = read_task(path), describe("cpu")
    bench = await open_workbench(task, device, tmp_path / "scratch", seed=1, zygote=zygote)
    try:
        original = original_of(task, (await bench.intake()).graphs, device)
        (racy,) = [found.make() for found in on_source.faults(original) if "stage their rows" in str(found.fault)]
        build = target_of(device).build(racy)
        assert build.ok
        for number in range(5):
            verdict = await bench.verify(f"{racy}\n# {number}\n", build, "full")
            if not verdict.correct:
                break
        assert not verdict.correct
        right = await bench.verify(original.text, target_of(device).build(original.text), "full")
        assert right.correct
    finally:
        await bench.aclose()
