"""Blocks of GPU memory travel between processes as open files, also to one that is confined."""

from __future__ import annotations

import gc
import os

import pytest
import torch

from foundry.knowledge.opgraph import TensorSpec, contiguous_strides
from foundry.tools.grade.judge import carriers
from foundry.tools.process import gpu_memory
from foundry.tools.process.gpu_memory import OutOfGpuMemory, SharedGpuMemory
from foundry.tools.task import bundle

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, contiguous_strides(shape), "float32")


def test_tensors_lie_as_pytorchs_own_allocator_would_put_them() -> None:
    places, size = bundle.gpu_places([spec(3), spec(1 << 20), spec(5), spec(0)])
    assert places == [0, 2 << 20, 6 << 20, (6 << 20) + 512] and size == (6 << 20) + 512
    assert bundle.gpu_places([])[1] > 0


@pytest.mark.gpu
@needs_gpu
def test_a_block_is_the_same_memory_wherever_it_is_mapped() -> None:
    torch.zeros(1, device="cuda")
    specs = [spec(1000, 300), spec(7)]
    mine = SharedGpuMemory.create(bundle.gpu_places(specs)[1])
    handle = mine.handle()
    theirs = SharedGpuMemory.opened(handle, mine.nbytes)
    os.close(handle)
    assert mine.address != theirs.address
    ours, others = (bundle.gpu_views(specs, block) for block in (mine, theirs))
    ours[0].fill_(3.0)
    torch.cuda.synchronize()
    assert float(others[0].sum()) == 900_000.0
    assert ours[0].untyped_storage().nbytes() == 1_200_000


@pytest.mark.gpu
@pytest.mark.alone
@needs_gpu
def test_a_block_is_free_when_the_last_tensor_in_it_is_gone() -> None:
    torch.zeros(1, device="cuda")
    before = torch.cuda.mem_get_info()[0]
    views = bundle.gpu_views([spec(1 << 28)], SharedGpuMemory.create(1 << 30))
    assert torch.cuda.mem_get_info()[0] <= before - (1 << 30)
    views[0].fill_(1.0)
    del views
    gc.collect()
    assert torch.cuda.mem_get_info()[0] >= before


def test_a_block_waits_for_memory_that_others_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def driver(name: str, *arguments: object, may_fail: bool = False) -> None:
        asked.append(name)
        if name == "cuMemCreate" and asked.count(name) < 4:
            raise OutOfGpuMemory("cuMemCreate: the GPU is out of memory")

    monkeypatch.setattr(gpu_memory, "_call", driver)
    monkeypatch.setattr(gpu_memory, "_granularity", lambda: 1 << 21)
    with pytest.raises(OutOfGpuMemory):
        SharedGpuMemory.create(1 << 21)
    assert SharedGpuMemory.create(1, patience_s=30.0).nbytes == 1 << 21 and asked.count("cuMemCreate") == 4


@pytest.mark.gpu
@needs_gpu
def test_what_this_process_does_not_use_is_given_back_for_a_block() -> None:
    free = torch.cuda.mem_get_info()[0]
    nbytes = int(0.6 * free)
    del_later = [torch.empty(nbytes, dtype=torch.uint8, device="cuda")]
    del_later.clear()  # PyTorch keeps it for its own next tensor
    assert carriers._created(nbytes).nbytes >= nbytes


@pytest.mark.gpu
@needs_gpu
def test_more_than_there_is_raises() -> None:
    torch.zeros(1, device="cuda")
    with pytest.raises(OutOfGpuMemory):
        SharedGpuMemory.create(1 << 42)
