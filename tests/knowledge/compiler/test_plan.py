"""Plans of single operators and of small models mean what PyTorch computes (evaluated by the interpreter)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import check, materialising
from torch import nn
from torch.nn import functional as F

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.access import is_prepared
from foundry.knowledge.compiler.ir.kernels import GemmKernel, MapKernel, RowKernel, ScanKernel

Model = nn.Module | Callable[..., Any]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


# Beside its transpose: every pair of unusual numbers.
PAIRS = torch.tensor([0.0, -0.0, 1.0, -200.0, 3e38, math.inf, -math.inf, math.nan]).expand(8, 8)


POINTWISE: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "broadcast": (lambda a, b, c: (a + b) * c - 2 * a / (b.abs() + 1), [x(2, 3, 4), x(3, 1), x(4)]),
    "alpha": (lambda a, b: torch.add(a, b, alpha=3) + torch.rsub(a, b, alpha=2) + (1 - a), [x(3, 4), x(3, 4)]),
    "activations": (
        lambda a: F.elu(a) + F.selu(a) + F.leaky_relu(a, 0.2) + F.hardtanh(a, -2, 0.5) + F.celu(a, 0.7) + F.relu6(a),
        [x(5, 7)],
    ),
    "smooth": (
        lambda a: F.gelu(a) + F.gelu(a, approximate="tanh") + F.mish(a) + F.softplus(a, 2, 5) + F.hardswish(a),
        [x(5, 7)],
    ),
    "shrink": (
        lambda a: F.softshrink(a) + F.hardshrink(a) + F.threshold(a, 0.1, 2) + F.softsign(a) + F.logsigmoid(a),
        [x(5, 7)],
    ),
    "masks": (
        lambda a, b: torch.where(a > b, a, 0.0).masked_fill(b < 0, 7) * (a.isfinite() & ~(b == 0)),
        [x(4, 5), x(1, 5)],
    ),
    "clamps": (lambda a, b: a.clamp(-0.5, 0.5) + a.clamp(min=b) + a.clamp_max(0.2), [x(4, 5), x(4, 5)]),
    "integers": (
        lambda a, b: ((a // 3) % 2 + a * b - 1, (a & b) | 1, a / b, torch.div(a, 2, rounding_mode="floor"), a**2),
        [torch.arange(12).reshape(3, 4), torch.arange(1, 5)],
    ),
    "prelu": (F.prelu, [x(2, 3, 4), x(3)]),
    "glu": (lambda a: F.glu(a, 1), [x(2, 6, 3)]),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.7) + torch.addcmul(a, b, b, value=2), [x(6), x(6)]),
    "nan": (lambda a: torch.nan_to_num(a / a.relu(), 1.0) + torch.maximum(a, a * 2), [x(20)]),
    "logaddexp": (
        lambda a, b, c: (
            torch.logaddexp(a.mT, b),
            torch.logaddexp(a.double(), a.double() * 2),
            torch.logaddexp(c, c.mT),
        ),
        [x(5, 3) * 30, x(5), PAIRS],
    ),
    "mixed types": (lambda a, b: a * b + (a > 0) + b.to(torch.float64), [x(4), torch.arange(4)]),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_operators_become_one_map(name: str) -> None:
    model, inputs = POINTWISE[name]
    planned = check(model, *inputs)
    assert all(isinstance(step, MapKernel) for step in planned.steps)
    assert len(planned.steps) <= len(planned.outputs)


VIEWS: dict[str, tuple[Model, list[torch.Tensor], int]] = {
    "permute": (lambda a: a.permute(2, 0, 1) + 1, [x(2, 3, 4)], 1),
    "strided input": (lambda a: a * 2, [x(4, 6).t()[1:, ::2]], 1),
    "slices": (lambda a: a[:, 1:] * a[:, :-1] + a[1, 2] - a[..., -1:], [x(3, 5)], 1),
    "flip": (lambda a: a.flip(0, 2) + a, [x(2, 3, 4)], 1),
    "collapsing reshape": (lambda a: a.reshape(6, 4).t().relu(), [x(2, 3, 4)], 1),
    "copying reshape": (lambda a: a.transpose(0, 1).reshape(6, 4) * 2, [x(2, 3, 4)], 1),
    "expand": (lambda a, b: a.expand(3, 4) + b.unsqueeze(1).expand_as(a.expand(3, 4)), [x(1, 4), x(3)], 1),
    "chunks": (lambda a: [part * 2 for part in a.chunk(2, 1)] + list(a.unbind(0)), [x(2, 5)], 3),
    "diagonal": (lambda a: a.diagonal(1, 0, 1) + 1, [x(4, 4, 2)], 1),
    "unfold": (lambda a: a.unfold(1, 3, 2) * 2, [x(2, 9)], 1),
    "repeat": (lambda a: a.repeat(2, 3) + 1, [x(2, 3)], 1),
    "interleave": (lambda a: a.repeat_interleave(2, 1) + 1, [x(2, 3)], 1),
    "upsample": (lambda a: F.interpolate(a, scale_factor=2) + 1, [x(1, 2, 3, 3)], 1),
    "shuffle": (lambda a: F.pixel_unshuffle(F.pixel_shuffle(a, 2) * 2, 2), [x(1, 8, 3, 3)], 1),
    "cat": (lambda a, b: torch.cat([a * 2, b, a], 1), [x(2, 3), x(2, 2)], 3),
    "stack": (lambda a, b: torch.stack([a, b], 1), [x(2, 3), x(2, 3)], 1),
    "pad": (lambda a: F.pad(a, (1, 2, 0, 1), value=3.0), [x(2, 3)], 2),
    "roll": (lambda a: a.roll(2, 1), [x(3, 5)], 2),
    "roll twice": (lambda a: a.roll((1, 2), (0, 1)), [x(3, 5)], 4),
    "fill a new tensor": (lambda a: torch.zeros(3, 4).copy_(a) * 2, [x(3, 4)], 1),
    "triangles": (lambda a: a.tril() - a.triu(1) + torch.tril(torch.ones(4, 4)), [x(2, 4, 4)], 1),
    "indices": (lambda a: a + torch.arange(4) * torch.eye(4) + torch.linspace(0, 1, 4), [x(4, 4)], 1),
    "write to a slice": (lambda a: _zeroed(a), [x(3, 4)], 2),
    "no change": (lambda a: a.t(), [x(3, 4)], 1),
}


def _zeroed(a: torch.Tensor) -> torch.Tensor:
    b = a.clone()
    b[:, 1] = 0
    return b


@pytest.mark.parametrize("name", VIEWS)
def test_views_cost_no_kernel_of_their_own(name: str) -> None:
    model, inputs, steps = VIEWS[name]
    check(model, *inputs, steps=steps)


REDUCTIONS: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "sums": (lambda a: a.sum(1) + a.mean(-2), [x(2, 5, 3)]),
    "keepdim": (lambda a: a / a.sum((0, 2), keepdim=True), [x(2, 3, 4)]),
    "extrema": (lambda a: (a.amax(-1), a.min(0).values, a.max(), *a.max(1)), [x(3, 4)]),
    "arguments": (lambda a: (a.argmax(), a.argmin(1), a.argmax(0, keepdim=True)), [x(3, 4)]),
    "product": (lambda a: a.prod(1), [x(3, 4)]),
    "truth": (lambda a: ((a > 1).any(1), (a > -1).all(), torch.count_nonzero(a > 0, 1)), [x(3, 4)]),
    "variance": (lambda a: a.var(1) + a.std(1, unbiased=False) + a.var((0, 1), correction=0), [x(3, 4)]),
    "norms": (lambda a: (a.norm(), a.norm(p=1, dim=1), F.normalize(a, dim=0), a.norm(p=3, dim=0)), [x(3, 4)]),
    "logsumexp": (lambda a: a.logsumexp(1) + torch.logsumexp(a, (0, 1)), [x(3, 4)]),
    "similarity": (lambda a, b: F.cosine_similarity(a, b) + F.pairwise_distance(a, b), [x(3, 4), x(3, 4)]),
    "permuted": (lambda a: a.permute(1, 2, 0).sum(1), [x(2, 3, 4)]),
    "of a scalar": (lambda a: a.sum() * 2, [x()]),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    model, inputs = REDUCTIONS[name]
    check(model, *inputs)


def _layer_norm_by_hand(a: torch.Tensor) -> torch.Tensor:
    centred = a - a.mean(-1, keepdim=True)
    return F.relu(centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5))


ROWS: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "softmax": (lambda a: torch.softmax(a * 3, 1), [x(3, 4)]),
    "softmax over channels": (lambda a: torch.softmax(a, 1).relu() + 1, [x(2, 5, 3, 2)]),
    "log softmax": (lambda a: F.log_softmax(a, -1).exp(), [x(3, 4)]),
    "softmax by hand": (
        lambda a: (
            (a - a.max(1, keepdim=True).values).exp() / (a - a.max(1, keepdim=True).values).exp().sum(1, keepdim=True)
        ),
        [x(3, 4)],
    ),
    "layer norm": (nn.Sequential(nn.LayerNorm([3, 4]), nn.GELU()), [x(2, 3, 4)]),
    "layer norm by hand": (_layer_norm_by_hand, [x(3, 6)]),
    "RMS norm": (lambda a, w: F.rms_norm(a, (4,), w), [x(3, 4), x(4)]),
    "RMS norm by hand": (lambda a: a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6) * 2, [x(3, 4)]),
    "RMS norm over channels": (lambda a: a / torch.sqrt((a**2).mean(1, keepdim=True) + 1e-6), [x(2, 3, 4, 5)]),
    "group norm": (nn.Sequential(nn.GroupNorm(2, 6), nn.SiLU()), [x(2, 6, 3, 3)]),
    "instance norm": (nn.InstanceNorm2d(3, affine=True), [x(2, 3, 4, 4)]),
    "norm, activation, softmax": (lambda a: torch.softmax(F.gelu(F.layer_norm(a, (6,))), -1), [x(3, 6)]),
    "logsumexp chain": (lambda a: F.mish(torch.logsumexp(a, 1, keepdim=True)) * 2, [x(3, 6)]),
    "unit length": (lambda a: F.normalize(a, dim=1) * 3, [x(3, 6)]),
    "deviation": (lambda a: (a - a.mean((1, 2), keepdim=True)) / (a.std((1, 2), keepdim=True) + 1), [x(3, 6, 2)]),
}


@pytest.mark.parametrize("name", ROWS)
def test_chains_of_reductions_over_the_same_rows_become_one_kernel(name: str) -> None:
    model, inputs = ROWS[name]
    planned = check(model, *inputs, steps=1)
    assert isinstance(planned.steps[0], RowKernel)


def test_batch_norm_in_training_writes_its_statistics_back() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    planned = check(model, x(4, 3, 5, 5) * 3 + 1)
    assert set(planned.write_backs) == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}
    rows = [step for step in planned.steps if isinstance(step, RowKernel)]
    assert len(rows) == 1 and len(planned.steps) == 2


def test_batch_norm_in_evaluation_joins_the_convolution_folded_or_not() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model(x(8, 3, 6, 6))
    model.eval()
    planned = check(model, x(2, 3, 6, 6), steps=2)
    assert planned.rewrites == ("fold-batchnorm",) and planned.labels == ("prepared_weights",)
    folded = check(model, x(2, 3, 6, 6), steps=2, recipe=Recipe("cpu", rewrites=("fold-batchnorm",)))
    assert folded.labels == ("rewrite:fold-batchnorm", "prepared_weights")
    scale = planned.steps[0]
    assert isinstance(scale, MapKernel) and is_prepared(scale, planned.buffers)
    assert not is_prepared(planned.steps[1], planned.buffers)


LOSSES: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "mse": (F.mse_loss, [x(3, 4), x(3, 4)]),
    "l1 sum": (lambda a, b: F.l1_loss(a, b, reduction="sum"), [x(3, 4), x(3, 4)]),
    "huber": (lambda a, b: F.huber_loss(a, b, delta=0.5) + F.smooth_l1_loss(a, b, beta=0.5), [x(3, 4), x(3, 4)]),
    "binary": (lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid()), [x(3, 4), x(3, 4)]),
    "binary with logits": (
        lambda a, b, w: F.binary_cross_entropy_with_logits(a, b.sigmoid(), pos_weight=w.abs()),
        [x(3, 4), x(3, 4), x(4)],
    ),
    "divergence": (lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"), [x(3, 4), x(3, 4)]),
    "hinge": (lambda a, b: (1 - a * b.sign()).clamp(min=0).mean(), [x(3, 4), x(3, 4)]),
    "hinge embedding": (lambda a, b: F.hinge_embedding_loss(a, b.sign()), [x(3, 4), x(3, 4)]),
    "ranking": (lambda a, b: F.margin_ranking_loss(a, b, a.sign(), margin=0.2), [x(4), x(4)]),
    "triplet": (lambda a, b, c: F.triplet_margin_loss(a, b, c), [x(5, 4), x(5, 4), x(5, 4)]),
    "cosine": (lambda a, b: F.cosine_embedding_loss(a, b, a[:, 0].sign()), [x(5, 4), x(5, 4)]),
    "poisson": (lambda a, b: F.poisson_nll_loss(a, b.abs()), [x(5, 4), x(5, 4)]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    model, inputs = LOSSES[name]
    check(model, *inputs)


@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"label_smoothing": 0.2}, {"ignore_index": 1}])
def test_cross_entropy(options: dict[str, Any]) -> None:
    target = torch.tensor([1, 0, 4, 1])
    check(lambda a, t: F.cross_entropy(a * 2, t, **options), x(4, 5), target)
    check(lambda a, t: F.cross_entropy(a, t, **options), x(4, 5, 2), torch.stack([target, target + 0], 1))
    if "label_smoothing" not in options:
        check(lambda a, t: F.nll_loss(F.log_softmax(a, 1), t, **options), x(4, 5), target)
        check(lambda a, t, w: F.cross_entropy(a, t, w.abs(), **options), x(4, 5), target, x(5))


def test_cross_entropy_of_probabilities() -> None:
    check(lambda a, t: F.cross_entropy(a, t.softmax(1), label_smoothing=0.1), x(4, 5), x(4, 5))


PRODUCTS: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "linear": (nn.Sequential(nn.Linear(4, 6), nn.ReLU()), [x(3, 4)]),
    "linear of a batch": (nn.Linear(4, 6), [x(2, 3, 4)]),
    "linear of a view": (nn.Linear(4, 6), [x(2, 4, 3).transpose(1, 2)]),
    "residual": (lambda a, w: F.linear(a, w) * 2 + a, [x(3, 4), x(4, 4)]),
    "mm": (lambda a, b: torch.mm(a.t(), b).tanh(), [x(4, 3), x(4, 5)]),
    "bmm": (lambda a, b: torch.bmm(a, b) + 1, [x(2, 3, 4), x(2, 4, 5)]),
    "broadcast batch": (torch.matmul, [x(2, 1, 3, 4), x(5, 4, 6)]),
    "matrix of the batch": (torch.matmul, [x(2, 3, 4), x(4, 5)]),
    "addmm": (lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2), [x(3, 4), x(4, 5), x(5)]),
    "baddbmm": (torch.baddbmm, [x(2, 3, 5), x(2, 3, 4), x(2, 4, 5)]),
    "vectors": (lambda a, b: (a @ b, a.mv(b), b @ b, torch.outer(b, b), a.t()[:3] @ a[:, 0]), [x(4, 4), x(4)]),
    "einsum": (lambda a, b: torch.einsum("bijl,lk->bijk", a, b), [x(2, 2, 3, 4), x(4, 5)]),
    "einsum that turns": (lambda a, b: torch.einsum("bik,bjk->jib", a, b), [x(2, 3, 4), x(2, 5, 4)]),
    "einsum of three": (lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), [x(3, 4), x(4, 5), x(5, 2)]),
    "einsum with an ellipsis": (lambda a, b: torch.einsum("...ij,...jk->...ik", a, b), [x(2, 3, 4), x(2, 4, 5)]),
    "transposed batch": (lambda a, w: F.linear(a.transpose(0, 1), w).relu().transpose(0, 1), [x(3, 2, 4), x(5, 4)]),
    "tensordot": (lambda a, b: torch.tensordot(a, b, dims=([1, 2], [0, 1])), [x(2, 3, 4), x(3, 4, 5)]),
    "prologue": (lambda a, b: (a.relu() * 2) @ b, [x(3, 4), x(4, 5)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    model, inputs = PRODUCTS[name]
    planned = check(model, *inputs)
    assert len(planned.steps) <= len(planned.outputs) + (name == "einsum of three")


CONVOLUTIONS: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "1d": (nn.Conv1d(3, 4, 3, stride=2, padding=1), [x(2, 3, 9)]),
    "2d": (nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.ReLU()), [x(2, 4, 5, 5)]),
    "same": (nn.Conv2d(3, 4, 3, padding="same", dilation=2), [x(1, 3, 7, 7)]),
    "3d": (nn.Conv3d(2, 3, (1, 2, 3)), [x(1, 2, 3, 4, 5)]),
    "transposed": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        [x(2, 4, 4, 5)],
    ),
    "transposed 3d": (nn.ConvTranspose3d(2, 3, 2, stride=2, bias=False), [x(1, 2, 3, 3, 3)]),
    "of a view": (nn.Conv2d(3, 4, 1), [x(2, 5, 5, 3).permute(0, 3, 1, 2)]),
    "without batch": (nn.Conv2d(3, 4, 3), [x(3, 5, 5)]),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    model, inputs = CONVOLUTIONS[name]
    check(model, *inputs, steps=1)


def test_a_pointwise_convolution_may_run_as_a_product() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    recipe = Recipe("cpu", rewrites=("pointwise-convolution-as-gemm",))
    planned = check(model, x(2, 3, 5, 5), recipe=recipe, steps=1)
    assert isinstance(planned.steps[0], GemmKernel) and planned.steps[0].constant_a


POOLS: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "max": (nn.MaxPool2d(3, stride=2, padding=1), [x(2, 3, 7, 7)]),
    "max 1d dilated": (nn.MaxPool1d(2, dilation=2), [x(2, 3, 9)]),
    "max 3d ceil": (nn.MaxPool3d(2, ceil_mode=True), [x(1, 2, 3, 5, 4)]),
    "indices": (nn.MaxPool2d(2, return_indices=True), [x(2, 3, 4, 4)]),
    "average": (nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), [x(2, 3, 7, 7)]),
    "average 1d": (nn.AvgPool1d(3, padding=1), [x(2, 3, 7)]),
    "average 3d": (nn.AvgPool3d(2, divisor_override=3), [x(1, 2, 4, 4, 4)]),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 5)), [x(2, 3, 7, 10)]),
    "adaptive even": (nn.AdaptiveAvgPool2d((2, 5)), [x(2, 3, 4, 10)]),
    "adaptive max": (nn.AdaptiveMaxPool1d(3), [x(2, 3, 7)]),
    "global": (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), [x(2, 3, 5, 5)]),
    "between": (nn.Sequential(nn.ReLU(), nn.AvgPool2d(2), nn.Sigmoid()), [x(2, 3, 4, 4)]),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str) -> None:
    model, inputs = POOLS[name]
    check(model, *inputs, steps=1)


SCANS: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "sum": (lambda a: a.cumsum(1), [x(3, 5)]),
    "first dimension": (lambda a: a.cumsum(0) * 2, [x(3, 5, 2)]),
    "masked": (lambda a, m: torch.cumsum(a * (m > 0), 1), [x(3, 5), x(3, 5)]),
    "product": (lambda a: a.cumprod(-1), [x(3, 5)]),
    "maximum": (lambda a: a.cummax(1).values, [x(3, 5)]),
    "maximum and where": (lambda a: a.cummax(1), [x(3, 5)]),
    "backwards": (lambda a: a.flip(1).cumsum(1).flip(1) + 1, [x(3, 5)]),
    "of counts": (lambda a: (a > 0).cumsum(1), [x(3, 5)]),
}


@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str) -> None:
    model, inputs = SCANS[name]
    planned = check(model, *inputs, steps=1)
    assert isinstance(planned.steps[0], ScanKernel)
    assert planned.steps[0].reverse == (name == "backwards")


def test_exclusive_scan_out_of_parts() -> None:
    def model(a: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(a[:, :1]), a.cumsum(1)[:, :-1]], 1)

    check(model, x(3, 5))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_scan_behind_a_constant_is_one_exclusive_scan(dim: int) -> None:
    def model(a: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(a.select(dim, 0).unsqueeze(dim)), a.narrow(dim, 0, 4).cumsum(dim)], dim)

    planned = check(model, x(5, 5), steps=1)
    assert isinstance(planned.steps[0], ScanKernel) and planned.steps[0].exclusive


@pytest.mark.parametrize("first", [1, 0])
def test_a_scan_that_could_not_read_one_element_more_stays(first: int) -> None:
    def model(a: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(a[:, :1]), a.narrow(1, first, 5 - first).cumsum(1)], 1)

    check(model, x(3, 5), steps=2)


INDEXING: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "embedding": (lambda w, i: F.embedding(i, w) * 2, [x(7, 3), torch.tensor([[1, 6], [0, 3]])]),
    "select": (lambda a, i: a.index_select(1, i), [x(2, 5, 3), torch.tensor([4, 0, 0])]),
    "gather": (lambda a, i: a.gather(1, i), [x(2, 5), torch.tensor([[4, 0], [1, 1]])]),
    "index": (lambda a, i: a[:, i] + a[0, i].sum(), [x(2, 5), torch.tensor([4, -1, 2])]),
    "two indices": (lambda a, i: a[i, :, i - 1], [x(3, 2, 3), torch.tensor([2, 0, 1])]),
    "of a computed value": (lambda a, i: (a * 2).gather(1, i).relu(), [x(2, 5), torch.tensor([[4, 0], [1, 1]])]),
    "one hot": (lambda i: F.one_hot(i, 5), [torch.tensor([1, 4])]),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str) -> None:
    model, inputs = INDEXING[name]
    check(model, *inputs)


def test_what_has_no_template_calls_torch_and_says_so() -> None:
    planned = check(lambda a: torch.linalg.matrix_exp(a * 2) + 1, x(4, 4), calls=["linalg_matrix_exp"])
    assert planned.labels == ("torch:linalg_matrix_exp",)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_types_compute_in_float32(dtype: torch.dtype) -> None:
    a, w = x(4, 6).to(dtype), x(6, 6).to(dtype)
    check(lambda a: F.gelu(F.layer_norm(a * 2, (6,))), a, steps=1, tolerance=2e-2)
    check(lambda a, w: F.linear(a, w).relu() + a, a, w, steps=1, tolerance=3e-2)


def test_an_explicit_cast_still_rounds() -> None:
    check(lambda a: a.to(torch.bfloat16).to(torch.float32) * 3, x(50), steps=1, tolerance=0)


class Block(nn.Module):
    """A transformer block: everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        n = self.first(a)
        a = a + self.attention(n, n, n, need_weights=False)[0]
        result: torch.Tensor = a + self.mlp(self.second(a))
        return result


def test_every_cut_of_a_transformer_block_is_right_and_changes_the_kernels() -> None:
    model, a = Block(), x(2, 5, 8)
    base = Recipe("cpu")
    planned = check(model, a)
    assert len(planned.steps) <= 8
    for recipe in materialising(planned, base):
        cut = check(model, a, recipe=recipe)
        assert cut.steps != planned.steps and cut.materialised == recipe.materialise
    everything = Recipe("cpu", materialise=planned.fused)
    assert len(check(model, a, recipe=everything).steps) > len(planned.steps) + 2


def test_rows_and_columns_of_one_matrix_are_walked_by_two_kernels() -> None:
    """One kernel over both would read one of them an element a cache line."""
    both = check(lambda a: a.logsumexp(0) + a.logsumexp(1), x(6, 6), steps=2)
    assert all(isinstance(step, RowKernel) for step in both.steps)
    check(lambda a: a.logsumexp(1) + a.amax(1), x(6, 6), steps=1)


def test_what_a_row_is_reduced_to_is_spread_across_rows_by_a_kernel_of_its_own() -> None:
    """One kernel over both would store an element a cache line."""
    big, bias = x(64, 64), x(64, 1)
    spread = check(lambda a, b: a.amin(1, keepdim=True).T + b, big, bias, steps=2)
    assert [type(step) for step in spread.steps] == [RowKernel, MapKernel]
    check(lambda a, b: a.amin(1, keepdim=True).T + b, x(256, 8), x(8, 1), steps=1)  # too little to store
    check(lambda a, b: a.amin(1, keepdim=True) + b.T, big, bias, steps=1)  # along the rows
    check(lambda a, b: (a - a.amin(1, keepdim=True)).T + b, big, bias, steps=1)  # reads the rows anyway


def test_rows_of_a_few_elements_are_maps() -> None:
    """Boxes' overlaps: two sides each, multiplied; a kernel over rows of two took ten times as long on a CPU."""

    def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
        both = (high - low).clamp(min=0).prod(-1)
        return both / ((a[:, 2:] - a[:, :2]).prod(-1)[:, None] + (b[:, 2:] - b[:, :2]).prod(-1) - both)

    boxes = [torch.cat([low, low + torch.rand(5, 2)], 1) for low in (torch.rand(5, 2), torch.rand(5, 2))]
    planned = check(overlap, *boxes)
    assert all(isinstance(step, MapKernel) for step in planned.steps)
    for few in (lambda a: a.sum(1), lambda a: a.mean(1), lambda a: a.amax(1), lambda a: a.amin(0, keepdim=True)):
        (step,) = check(few, x(3, 3), steps=1).steps
        assert isinstance(step, MapKernel)
    nothing = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), -1.0, 0.0]])
    check(lambda a: a.amax(1), nothing, steps=1)
    for long in (lambda a: a.sum(1), lambda a: a.argmax(1), lambda a: a / a.sum(1, keepdim=True)):
        assert any(isinstance(step, RowKernel) for step in check(long, x(6, 6)).steps)
    assert any(isinstance(step, RowKernel) for step in check(lambda a: a.argmax(1), x(3, 3)).steps)
