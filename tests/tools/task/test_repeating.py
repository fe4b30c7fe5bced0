"""Random tensors that repeat their first elements."""

from __future__ import annotations

import torch

from foundry.tools.task.repeating import Repeating


def test_large_random_tensors_repeat_what_was_drawn_first_and_nothing_else_does() -> None:
    with Repeating(8) as drawing:
        small, integers = torch.rand(8), torch.randint(0, 1 << 40, (32,))
        assert not drawing.repeats
        made = [
            torch.rand(4, 7),
            torch.randn(30, dtype=torch.float64),
            torch.randn_like(small.new_empty(3, 9)),
            torch.nn.init.normal_(torch.empty(21, dtype=torch.float16)),
            torch.empty(20).uniform_(2.0, 3.0),
        ]
    assert drawing.repeats and len({*small.tolist()}) == 8 and len({*integers.tolist()}) > 8
    for tensor in made:
        flat = tensor.flatten()
        assert torch.equal(flat[8:], flat[:-8]) and len({*flat[:8].tolist()}) > 1
    assert made[0].min() >= 0.0 and made[4].min() >= 2.0 and made[1].min() < 0.0
