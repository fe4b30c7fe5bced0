"""Many products of a few rows, columns and terms, as geometry has them: written out for each element."""

from __future__ import annotations

import pytest
import torch
from tests.knowledge.library.lowering import check
from tests.knowledge.library.test_operators import Case, x

from foundry.knowledge.library.ir.kernels import GemmKernel, TorchCall


def _frames(angles: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
    """A chain of frames, each in the one before it."""
    links = fixed * angles.cos()[..., None, None]
    frame = links[:, 0]
    for place in range(1, links.shape[1]):
        frame = frame @ links[:, place]
    return frame


def _peaks(parts: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    moved = parts @ steps.transpose(-1, -2)
    return moved / (1 + moved.abs().amax((0, 3), keepdim=True))


SMALL_PRODUCTS: dict[str, Case] = {
    "frames": (_frames, [x(1100, 3), x(3, 4, 4)]),
    "one matrix for many rows": (lambda a, b: (a @ b).relu(), [x(5000, 6), x(6, 4)]),
    "one matrix of each": (_peaks, [x(2, 3, 900, 4), x(2, 3, 4, 4)]),
    "a jacobian with itself": (lambda a: a.mT @ a + torch.eye(6), [x(500, 7, 6)]),
    "with an addend": (
        lambda a, b, c: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0),
        [x(900, 5, 3), x(900, 3, 4), x(5, 4)],
    ),
    "linear": (lambda a, w, b: torch.nn.functional.linear(a, w, b).tanh(), [x(40, 90, 16), x(5, 16), x(5)]),
    "two dimensions summed": (lambda a, b: torch.tensordot(a, b, ([1, 2], [0, 1])), [x(5000, 2, 3), x(2, 3, 4)]),
    "turned": (lambda a, b: torch.einsum("bij,bkj->kbi", a, b), [x(600, 6, 4), x(600, 5, 4)]),
    "columns of a row": (lambda a, b: a @ b, [x(3000, 1, 4), x(3000, 4, 6)]),
    "a row by a column": (lambda a, b: (a * b).unsqueeze(1) @ b.unsqueeze(2), [x(17000, 3), x(17000, 3)]),
}


@pytest.mark.parametrize("name", SMALL_PRODUCTS)
def test_small_products_are_written_out(name: str) -> None:
    model, inputs = SMALL_PRODUCTS[name]
    planned = check(model, *inputs)
    assert not [step for step in planned.steps if isinstance(step, GemmKernel | TorchCall)]


def test_numbers_of_16_bits_are_added_in_32() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    planned = check(model, x(1100, 4, 4).half(), x(1100, 4, 4).half(), tolerance=1e-3)
    assert not [step for step in planned.steps if isinstance(step, GemmKernel)]


def test_few_products_stay_products() -> None:
    planned = check(lambda a, b: a @ b, x(10, 4, 4), x(10, 4, 4))
    assert [step for step in planned.steps if isinstance(step, GemmKernel)]


CROSSED: dict[str, Case] = {
    "of vectors": (lambda a, b: torch.linalg.cross(a, b) * 2, [x(5, 3), x(5, 3)]),
    "of columns": (lambda a, b: torch.cross(a, b, dim=1), [x(4, 3, 6), x(4, 3, 6)]),
    "of one and many": (lambda a, b: torch.linalg.cross(a, b.sin()), [x(1, 3), x(7, 3)]),
    "of a difference": (lambda a, b: torch.linalg.cross(a, b - a, dim=0), [x(3, 5), x(3, 5)]),
}


@pytest.mark.parametrize("name", CROSSED)
def test_cross_products(name: str) -> None:
    model, inputs = CROSSED[name]
    check(model, *inputs)
