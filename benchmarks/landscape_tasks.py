"""The tasks whose landscapes are recorded: on a GPU the sizes that models have, on a CPU such as fit its caches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Rows(nn.Module):
    """Something over the last dimension, and a little around it."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind, self.norm = kind, nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "layer_norm_gelu":
            return torch.nn.functional.gelu(self.norm(x))
        if self.kind == "rms_norm":
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) + x
        if self.kind == "log_softmax":
            return torch.log_softmax(x, dim=-1)
        return torch.softmax(x * 0.5, dim=-1)


class Product(nn.Module):
    """A product with its bias and an activation."""

    def __init__(self, width: int, out: int, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(width, out), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.linear(x)
        return torch.relu(found) if self.kind == "relu" else torch.nn.functional.gelu(found) * 0.5


class Convolution(nn.Module):
    """A convolution with its bias and an activation."""

    def __init__(self, channels: int, out: int, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, size, padding=size // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


class Chain(nn.Module):
    """Pointwise work."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "long":
            return torch.nn.functional.gelu(x) * torch.sigmoid(x) + torch.tanh(x)
        return torch.nn.functional.silu(x) + 1.0


class Columns(nn.Module):
    """A reduction over another dimension than the last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).amax(dim=1)


class Mixed(nn.Module):
    """Any function of the inputs, with layers that it may call."""

    def __init__(self, work: Callable[..., torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.work, self.layers = work, nn.ModuleList(layers)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.work(*self.layers, *inputs)


def tasks(target: str) -> dict[str, Made]:
    """By name. Neighbours are relatives."""
    found = gpu_tasks() if target == "cuda" else cpu_tasks()
    return {name: (model.eval(), inputs) for name, (model, inputs) in found.items()}


def gpu_tasks() -> dict[str, Made]:
    return {
        "layer_norm_gelu": (Rows("layer_norm_gelu", 4096), (torch.empty(8192, 4096),)),
        "rms_norm": (Rows("rms_norm", 1024), (torch.empty(16384, 1024),)),
        "softmax": (Rows("softmax", 2048), (torch.empty(8192, 2048),)),
        "log_softmax": (Rows("log_softmax", 8192), (torch.empty(2048, 8192),)),
        "product_square": (Product(2048, 2048, "relu"), (torch.empty(2048, 2048),)),
        "product_flat": (Product(4096, 1024, "gelu"), (torch.empty(512, 4096),)),
        "product_deep": (Product(8192, 512, "relu"), (torch.empty(1024, 8192),)),
        "product_wide": (Product(1024, 4096, "gelu"), (torch.empty(4096, 1024),)),
        "convolution_early": (Convolution(64, 128, 3), (torch.empty(16, 64, 56, 56),)),
        "convolution_late": (Convolution(256, 256, 3), (torch.empty(16, 256, 14, 14),)),
        "chain_long": (Chain("long"), (torch.empty(4096, 4096),)),
        "chain_short": (Chain("short"), (torch.empty(1024, 1000),)),
        "columns_largest": (Columns(), (torch.empty(16, 2048, 512),)),
    }


def cpu_tasks() -> dict[str, Made]:
    """Of each kind one that may be looked at and, where there are two, one that is held out (benchmarks/search.py)."""
    return {**cpu_rows(), **cpu_products(), **cpu_windows()}


def cpu_rows() -> dict[str, Made]:
    e = torch.empty
    return {
        "norm_rows": (Mixed(lambda norm, x: F.gelu(norm(x)), nn.LayerNorm(1024)), (e(512, 1024),)),
        "softmax_scaled": (Mixed(lambda x: torch.softmax(x * 0.5, -1) * 2 + 1), (e(512, 512),)),
        "squared_error": (Mixed(lambda x, y: ((x - y) ** 2).mean()), (e(512, 1024), e(512, 1024))),
        "scan_softmax": (Mixed(lambda x: torch.softmax(torch.cumsum(x, 1), 1)), (e(256, 512),)),
        "columns_centred": (Mixed(lambda x: x - x.mean(1, keepdim=True)), (e(8, 256, 128),)),
        "transposed_sum": (Mixed(lambda x, y: F.gelu(x.transpose(1, 2) + y)), (e(8, 256, 128), e(8, 128, 256))),
    }


def cpu_products() -> dict[str, Made]:
    e = torch.empty
    block = nn.Linear(256, 256), nn.Linear(256, 128)
    return {
        "feed_forward": (Mixed(lambda one, two, x: two(F.gelu(one(x))), *block), (e(64, 256),)),
        "linear_norm": (
            Mixed(lambda one, norm, x: F.gelu(norm(one(x))), nn.Linear(256, 256), nn.LayerNorm(256)),
            (e(128, 256),),
        ),
        "attention_small": (Mixed(F.scaled_dot_product_attention), (e(1, 4, 128, 32),) * 3),
        "batched_softmax": (Mixed(lambda a, b: torch.softmax(torch.bmm(a, b) * 0.1, -1)), (e(4, 96, 96),) * 2),
    }


def cpu_windows() -> dict[str, Made]:
    e = torch.empty
    deep, turned = nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.ConvTranspose2d(16, 16, 4, 2, 1)
    wide = nn.Conv2d(8, 16, 3, padding=1)
    return {
        "convolution_deep": (Mixed(lambda conv, x: F.silu(conv(x)), deep), (e(4, 32, 28, 28),)),
        "convolution_turned": (Mixed(lambda conv, x: F.silu(conv(x)), turned), (e(2, 16, 16, 16),)),
        "convolution_pool": (Mixed(lambda conv, x: F.max_pool2d(torch.relu(conv(x)), 2), wide), (e(2, 8, 32, 32),)),
        "pool_overlapping": (Mixed(lambda x: F.max_pool2d(torch.relu(x), 3, 2, 1) * 2), (e(4, 32, 56, 56),)),
    }
