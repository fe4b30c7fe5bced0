"""Small products, as in geometry: a few rows, columns and terms, unrolled for each element; cross products."""

from __future__ import annotations

import pytest
import torch
from tests.knowledge.compiler.lowering import check
from tests.knowledge.compiler.test_operators import Case, x

from foundry.knowledge.compiler.ir.kernels import GemmKernel, MapKernel, TorchCall


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


def _harmonics(points: torch.Tensor) -> torch.Tensor:
    """Spherical harmonics of degree two, as colours of splats use them: nine values of a direction, contiguous."""
    u, v, w = (points / points.norm(dim=-1, keepdim=True)).unbind(-1)
    first = [torch.full_like(u, 0.28), -0.49 * v, 0.49 * w, -0.49 * u]
    second = [1.09 * u * v, -1.09 * v * w, 0.32 * (2 * w * w - u * u - v * v), -1.09 * u * w, 0.55 * (u * u - v * v)]
    return torch.stack([*first, *second], -1)


STACKED: dict[str, Case] = {
    "harmonics": (_harmonics, [x(4000, 3)]),
    "of two": (lambda a, b: torch.stack([a * b, a + b], 1) * 2, [x(90, 100), x(90, 100)]),
    "rows and their sums": (lambda a: torch.stack([a.sum(-1), a.amax(-1), a[:, 0]], -1), [x(9000, 3)]),
    "in another's place": (lambda a: torch.stack([a, torch.stack([a.sin(), a.cos()]).sum(0)], -1), [x(90, 100)]),
    "more than sixteen": (lambda a: torch.stack([a * k for k in range(20)], -1), [x(9000)]),
    "apart": (lambda a, b: torch.cat([a * 2, b + 1]), [x(90, 100), x(90, 100)]),
}


@pytest.mark.parametrize("name", STACKED)
def test_what_is_stacked(name: str) -> None:
    model, inputs = STACKED[name]
    check(model, *inputs)


def test_parts_that_read_the_same_are_written_by_one_kernel() -> None:
    (step,) = check(_harmonics, x(4000, 3), steps=1).steps
    assert isinstance(step, MapKernel) and len(step.stores) == 9, "and by the one that makes directions of points"
    planned = check(lambda a: torch.stack([a * k for k in range(20)], -1), x(9000))
    assert sorted(len(step.stores) for step in planned.steps if isinstance(step, MapKernel)) == [4, 16]
    planned = check(lambda a, b: torch.cat([a * 2, b + 1]), x(90, 100), x(90, 100))
    assert len(planned.steps) == 2, "lines of their own, and nothing in common"
