"""A large model is judged in three times its parameters, as measured: a candidate that prepares all of its weights, and
whoever asks it or is timed beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools.grade.test_judge_cuda import gpu, watched
from tests.tools.grade.test_workbench import BUILT, opened

from foundry.knowledge.device import Device
from foundry.tools.process.child import descendants
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.gpu_plan import CONTEXT_BYTES

LAYERS, SIZE = 8, 3072
TASK = """
import torch
from torch import nn

SIZE = {size}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False, dtype=torch.{dtype}) for _ in range({layers}))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def get_inputs():
    return [torch.randn(4, SIZE, dtype=torch.{dtype})]
"""
PREPARES = """

class ModelNew(Model):
    def forward(self, x):
        own = [item._version for item in self.parameters()]
        if getattr(self, "_own", None) != own:
            self._prepared = None
            self._own, self._prepared = own, [item.detach().clone() for item in self.parameters()]
        return super().forward(x)
"""
WORK_BYTES = 256 << 20  # of outputs' memory that is filled before calls, of parts on their way, in float64 and drawn


def _resident_bytes(process: int) -> int:
    """Of memory that no file on disk stands behind."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


@contextlib.contextmanager
def watched_host(taken: list[int]) -> Iterator[None]:
    """Writes down every few milliseconds how many bytes the processes below this one hold."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.02):
            taken.append(sum(map(_resident_bytes, descendants(os.getpid()))))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


async def judge(zygote: Zygote, folder: Path, source: str, device: Device | None = None) -> tuple[str, ...]:
    """Verifies, audits and times a candidate; the labels."""
    bench, text = await opened(zygote, folder, source, device), source + PREPARES
    try:
        verdict = await bench.verify(text, BUILT, "full")
        assert verdict.correct, verdict.evidence
        asked = {gate.gate for gate in verdict.gates}
        assert {"large parameters", "parameters rearranged", "few more parameters changed"} <= asked
        assert not [gate.gate for gate in verdict.gates if "want of memory" in gate.evidence]
        audit = await bench.audit(text, BUILT, verdict, "open")
        assert not (await bench.time(text, BUILT, "screen")).problem
        return tuple(audit.labels)
    finally:
        await bench.aclose()


@pytest.mark.slow
async def test_a_model_of_300_mb_is_judged_in_three_times_its_size(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge alone held 17 times the parameters, and five times where memory was short."""
    monkeypatch.setenv("FOUNDRY_TASK_GB", "1.2")
    peaks: list[int] = []
    for size in (128, SIZE):
        taken: list[int] = []
        with watched_host(taken):
            labels = await judge(zygote, tmp_path, TASK.format(size=size, layers=LAYERS, dtype="float32"))
        peaks.append(max(taken))
    assert "not-asked:another instance (memory)" in labels
    parameters = 4 * LAYERS * SIZE * SIZE
    assert peaks[1] - peaks[0] < 3 * parameters + WORK_BYTES, (peaks, parameters)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.skipif(gpu() is None, reason="there is no NVIDIA GPU here")
def test_a_model_of_2_gb_is_judged_in_three_times_its_size_on_a_gpu(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, layers = 8192, 16
    parameters = 2 * layers * size * size
    most = 3 * parameters + 4 * CONTEXT_BYTES
    monkeypatch.setenv("FOUNDRY_GPU_GB", str(most / 0.95 / 1e9 + 0.1))
    taken: list[int] = []

    source = TASK.format(size=size, layers=layers, dtype="bfloat16")
    with watched(taken):
        asyncio.run(judge(zygote, tmp_path, source, gpu()))
    assert max(taken) - taken[0] < most, (max(taken) - taken[0], parameters)
