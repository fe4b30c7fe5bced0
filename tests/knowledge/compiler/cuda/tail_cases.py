"""Models whose results are reduced where they are made, for the CUDA printers: products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

from foundry.knowledge.candidate import Choice

Tensors = list[torch.Tensor]


@dataclass
class TailCase:
    """`model` of `inputs`, the weights among them; `choices` are for the contraction."""

    model: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
    inputs: Tensors
    choices: dict[str, Choice] = field(default_factory=dict)
    tolerance: float = 1e-3  # of the norm
    has_tail: bool = True


def product(
    after: Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]],
    sizes: tuple[int, int, int] = (70, 40, 130),
    dtype: torch.dtype = torch.float32,
    **choices: Choice,
) -> TailCase:
    """after(linear(x)) of m x k by k x n."""
    m, k, n = sizes
    inputs = [torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n)]
    return TailCase(lambda x, w, b: after(F.linear(x, w, b)), [t.to(dtype) for t in inputs], dict(choices))


def norm(groups: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda y: torch.tanh(F.group_norm(F.gelu(y), groups))


def lse(y: torch.Tensor) -> torch.Tensor:
    return F.leaky_relu(torch.logsumexp(y * 3, 1, keepdim=True))


def extremes(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return y.amax(1), y.sigmoid().sum(1), y.argmin(1)


MMA: dict[str, Any] = {"path": "mma", "precision": "tf32"}
WGMMA: dict[str, Any] = {"path": "wgmma", "precision": "tf32"}
PACKED: dict[str, Any] = {"precision": "half"}
WIDE: dict[str, Any] = {"tile_n": 256, "group_n": 256, "stages": 4}
ODD = (70, 36, 131)

PRODUCTS: dict[str, Callable[[], TailCase]] = {
    "mma_softmax": lambda: product(lambda y: F.softmax(y, 1), **MMA),
    "mma_odd": lambda: product(extremes, ODD, **MMA),
    "mma_groups": lambda: product(norm(4), (70, 40, 128), **MMA, warp_n=32, tile_n=64),
    "wgmma_lse": lambda: product(lse, **WGMMA),
    "wgmma_odd": lambda: product(norm(1), ODD, **WGMMA),
    "packed_layer_norm": lambda: product(norm(1), **PACKED),
    "packed_odd": lambda: product(extremes, ODD, **PACKED),
    "packed_groups": lambda: product(norm(16), (70, 40, 256), **PACKED, tile_n=128, group_n=128),
    "packed_wide": lambda: product(
        lambda y: (y.relu(), y.mean(1)), (70, 40, 520), **PACKED, tile_n=256, group_n=256, stages=4
    ),
    "packed_half3": lambda: product(lse, precision="half3"),
    "sixteen": lambda: product(lse, dtype=torch.bfloat16),
    "ordinary": lambda: product(extremes, ODD, precision="ieee"),
    "ordinary_norm": lambda: product(norm(1), precision="ieee"),
    "batched": lambda: TailCase(
        lambda a, b: torch.logsumexp(a @ b, -1), [torch.randn(2, 3, 33, 20), torch.randn(2, 3, 20, 70)], {}
    ),
}


def conv(
    after: Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]],
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, ...],
    window: tuple[int, ...],
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    transposed: bool = False,
    dtype: torch.dtype = torch.float32,
    **choices: Choice,
) -> TailCase:
    """after(convolution(x)) with a bias."""
    of_weight = (channels[0], channels[1] // groups) if transposed else (channels[1], channels[0] // groups)
    weight = torch.randn(*of_weight, *window) / (channels[0] // groups * math.prod(window)) ** 0.5
    inputs = [torch.randn(batch, channels[0], *size), weight, torch.randn(channels[1])]
    name = f"conv_transpose{len(size)}d" if transposed else f"conv{len(size)}d"
    function = getattr(F, name)

    def model(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return after(function(x, w, b, stride=stride, padding=padding, groups=groups))

    return TailCase(model, [t.to(dtype) for t in inputs], dict(choices))


def gelu_norm(groups: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda y: F.hardswish(F.group_norm(F.gelu(y), groups))


def pixel_softmax(y: torch.Tensor) -> torch.Tensor:
    return F.softmax(y * 2, 1).sigmoid()


def least_channel(y: torch.Tensor) -> torch.Tensor:
    return y.amin(1, keepdim=True).tanh().tanh()


def least_of_large(y: torch.Tensor) -> torch.Tensor:
    """Whoever takes a zero for a channel has it as the least."""
    return (y + 50.0).amin(1, keepdim=True).rsqrt()


def many_channels(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = y.tanh()
    return torch.logsumexp(y, 1), y.mean(1), y.amax(1), y.argmax(1)


def batch_norm(y: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(y, None, None, training=True))


HALF: dict[str, Any] = {"precision": "half"}
CONVOLUTIONS: dict[str, Callable[[], TailCase]] = {
    "least": lambda: conv(least_channel, 2, (20, 24), (9, 11), (3, 3), **HALF),
    "least_of_large": lambda: conv(least_of_large, 2, (16, 64), (12, 40), (3, 3), tile_pixels=128, **HALF),
    "softmax": lambda: conv(pixel_softmax, 2, (20, 30), (9, 10), (3, 3), padding=1, **HALF),
    "softmax_3d": lambda: conv(pixel_softmax, 1, (16, 16), (5, 6, 7), (3, 3, 3), precision="half3"),
    "channels": lambda: conv(many_channels, 3, (16, 21), (8, 9), (3, 3), precision="tf32"),
    "phases": lambda: conv(many_channels, 2, (20, 16), (7, 9), (3, 3), stride=2, padding=1, transposed=True, **HALF),
    "channel_norm": lambda: conv(lambda y: F.layer_norm(y.movedim(1, -1), (40,)), 2, (16, 40), (70,), (5,), **HALF),
    "pooled": lambda: conv(lambda y: F.gelu(y).mean((2, 3)), 3, (20, 24), (17, 15), (3, 3), **HALF),
    "pooled_phases": lambda: conv(
        lambda y: F.relu(F.adaptive_avg_pool2d(y, 1)),
        *(2, (20, 16), (9, 10), (3, 3)),
        stride=2,
        transposed=True,
        **HALF,
    ),
    "exact": lambda: conv(gelu_norm(4), 2, (16, 32), (18, 18), (3, 3), tile_pixels=128, **HALF),
    "sums": lambda: conv(
        lambda y: (torch.logsumexp(y * 2, (2, 3)), (y > 0).any(3).any(2), y.amin((2, 3)), y.sum((0, 2, 3))),
        *(2, (16, 20), (11, 9), (3, 3)),
        **HALF,
    ),
    "highest": lambda: conv(lambda y: y.sigmoid().amax((2, 3, 4)), 2, (16, 24), (5, 6, 7), (3, 3, 3), **HALF),
    "group_norm": lambda: conv(gelu_norm(4), 2, (20, 24), (17, 15), (3, 3), tile_pixels=64, **HALF),
    "group_norm_3d": lambda: conv(gelu_norm(4), 2, (16, 16), (9, 9, 9), (3, 3, 3), padding=1, precision="tf32"),
    "grouped": lambda: conv(gelu_norm(16), 2, (32, 32), (18, 16), (3, 3), groups=2, padding=1, **HALF),
    "batch_norm": lambda: conv(batch_norm, 3, (20, 24), (13, 15), (3, 3), **HALF),
    "windows": lambda: conv(lambda y: F.mish(F.max_pool2d(y.tanh(), 2)), 2, (20, 24), (15, 12), (3, 3), **HALF),
    "windows_mean": lambda: conv(
        lambda y: torch.sigmoid(F.avg_pool2d(F.gelu(y), 2)), 3, (16, 40), (13, 13), (3, 3), padding=1, precision="half3"
    ),
    "windows_3d": lambda: conv(
        lambda y: F.relu(F.max_pool3d(y, 2)), 2, (16, 24), (6, 7, 8), (3, 3, 3), padding=1, transposed=True, **HALF
    ),
    "windows_of_sixteen": lambda: conv(
        lambda y: F.avg_pool2d(y.sigmoid(), 4).sum((1, 2, 3)), 2, (16, 24), (21, 23), (3, 3), **HALF
    ),
    "windows_of_phases": lambda: conv(
        lambda y: F.max_pool2d(F.leaky_relu(y) * 1.5, 2), 2, (20, 24), (9, 7), (3, 3), stride=2, transposed=True, **HALF
    ),
    "windows_of_phases_3d": lambda: conv(
        lambda y: F.avg_pool3d(y.tanh(), 2),
        *(2, (16, 40), (4, 5, 6), (3, 3, 3)),
        stride=2,
        padding=1,
        transposed=True,
        precision="half3",
    ),
    "windows_1d": lambda: conv(lambda y: F.max_pool1d(y, 16), 2, (24, 20), (101,), (5,), precision="tf32"),
    "sixteen": lambda: conv(gelu_norm(8), 2, (24, 16), (14, 14), (3, 3), dtype=torch.bfloat16),
}
