"""The owner of the memory in which the outputs of one call lie."""

from __future__ import annotations

import torch
from pytest import MonkeyPatch

from foundry.tools.grade.runner import tensors
from foundry.tools.grade.runner.tensors import shared_elements


def test_an_output_that_is_another_one_has_no_memory_of_its_own() -> None:
    """It was accepted where PyTorch's second output is a clone of the first."""
    block = torch.zeros(4, 6)
    assert shared_elements([block, torch.zeros(4, 6), block]) == [0, 0, 24]
    assert shared_elements([block, block[1:3]]) == [0, 12]
    assert shared_elements([block[:3], block[2:]]) == [0, 6]
    assert shared_elements([torch.zeros(4, 1).expand(4, 6)]) == [20]


def test_parts_of_one_block_share_nothing() -> None:
    block = torch.zeros(4, 6)
    assert shared_elements([block[:, ::2], block[:, 1::2], torch.zeros(0)]) == [0, 0, 0]
    pair = torch.view_as_real(torch.zeros(4, dtype=torch.complex64))
    assert shared_elements([pair[:, 0], pair[:, 1]]) == [0, 0]


def test_of_large_outputs_only_those_that_begin_together_are_found(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MARKED_BYTES", 0)
    block = torch.zeros(4, 6)
    assert shared_elements([block, block]) == [0, 24]
    assert shared_elements([block[:, :3], block[:, 3:]]) == [0, 0]
