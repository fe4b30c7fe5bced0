"""Blocks of GPU memory as a runner knows them, as far as that needs no GPU."""

from __future__ import annotations

from foundry.tools.grade.runner.tensors import GpuBlocks
from foundry.tools.process.messages import Packing

EMPTY = Packing(tree=[], specs=[])


def test_parameters_of_a_model_without_any_can_be_sent_again() -> None:
    """The judge sends a block's number alone the second time; no tensor has kept an empty block mapped until then."""
    blocks = GpuBlocks()
    assert blocks.tensors((0, 512), [7], EMPTY) == []
    assert blocks.tensors((0, 512), [], EMPTY) == []
