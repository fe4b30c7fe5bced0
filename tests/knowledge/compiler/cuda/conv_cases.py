"""Convolutions with known truths for the CUDA printer: every geometry by both algorithms, and the small groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tests.knowledge.compiler.cuda.cases import PRECISION_TOLERANCE, Case, F, load, op

from foundry.knowledge.compiler.ir.kernels import Apply, ConvKernel, Expr, Named, Store, View
from foundry.knowledge.opgraph import DType, contiguous_strides

Sizes = int | tuple[int, ...]
TILED = "implicit_gemm"
PACKED = "channels_last"
PLANES = "planes"
_NEAR: dict[str, Any] = {"algorithm": PACKED, "precision": "half"}


def conv(
    batch: int,
    planes: int,
    out: int,
    size: tuple[int, ...],
    window: tuple[int, ...],
    *,
    groups: int = 1,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    output_padding: Sizes = 0,
    transposed: bool = False,
    last: bool = False,
    residual: bool = False,
    dtype: DType = F,
    **choices: Any,
) -> Case:
    """relu(conv + bias), the bias in the epilogue; `residual` also adds a tensor and stores the sum before relu."""
    rank = len(size)
    wide: DType = "float64" if dtype == "float64" else F

    def each(value: Sizes) -> tuple[int, ...]:
        return (value,) * rank if isinstance(value, int) else value

    shape = (planes, out // groups, *window) if transposed else (out, planes // groups, *window)
    drawn = [torch.randn(sizes).to(getattr(torch, dtype)) for sizes in ((batch, planes, *size), shape, (out,))]
    inputs = dict(zip(("x", "w", "bias"), drawn, strict=True))
    if last:
        inputs["x"] = inputs["x"].contiguous(memory_format=torch.channels_last)
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    options |= {"output_padding": output_padding} if transposed else {}
    truth = _convolve(inputs, rank, transposed, options)
    outputs = {}
    if residual:
        inputs["more"] = torch.randn(truth.shape).to(inputs["x"].dtype)
        truth = truth + inputs["more"].double()
        outputs["sum"] = truth.to(inputs["x"].dtype)
    outputs["y"] = truth.relu().to(inputs["x"].dtype).contiguous()
    stores = _stores(tuple(truth.shape), dtype, wide, residual)
    kernel = ConvKernel(
        "conv",
        batch,
        planes,
        out,
        groups,
        size,
        tuple(truth.shape[2:]),
        window,
        *(each(stride), each(padding), each(dilation)),
        transposed,
        "x",
        0,
        tuple(inputs["x"].stride()),
        "w",
        stores,
        wide,
    )
    tolerance = max(PRECISION_TOLERANCE.get(key, 2e-6) for key in (dtype, str(choices.get("precision", ""))))
    return Case(kernel, inputs, outputs, dict(choices), tolerance, "precision" not in choices)


def pointwise(batch: int, planes: int, out: int, size: tuple[int, ...], **choices: Any) -> Case:
    """A 1x1 convolution from the planes of its input, which is always in TF32."""
    case = conv(batch, planes, out, size, (1,) * len(size), precision="tf32", algorithm=PLANES, **choices)
    del case.choices["precision"]
    return case


def _convolve(
    inputs: Mapping[str, torch.Tensor], rank: int, transposed: bool, options: Mapping[str, Any]
) -> torch.Tensor:
    """conv + bias in float64."""
    name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    wide = (inputs[key].double() for key in ("x", "w", "bias"))
    truth: torch.Tensor = getattr(torch.nn.functional, name)(*wide, **options)
    return truth


def _stores(shape: tuple[int, ...], dtype: DType, wide: DType, residual: bool) -> tuple[Store, ...]:
    strides = contiguous_strides(shape)
    bias = load("bias", 0, 1, *(0,) * (len(shape) - 2), dtype=dtype)
    value: Expr = op("add", Named("acc", wide), _cast(bias, wide), dtype=wide)
    stores = []
    if residual:
        value = op("add", value, _cast(load("more", *strides, dtype=dtype), wide), dtype=wide)
        stores.append(Store("sum", View(0, strides), _cast(value, dtype)))
    stores.append(Store("y", View(0, strides), _cast(op("relu", value, dtype=wide), dtype)))
    return tuple(stores)


def _cast(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype == dtype else Apply("cast", (value,), dtype)


def infinite_weight(**choices: Any) -> Case:
    """An infinite weight of one phase leaves the other phases finite: they must not even meet it times zero."""
    case = conv(1, 6, 4, (5, 6), (2, 2), stride=2, transposed=True, **choices)
    case.inputs["w"][:, :, 0, 0] = torch.inf
    case.inputs["x"].abs_()
    x, weight, bias = (case.inputs[name].double() for name in ("x", "w", "bias"))
    case.outputs["y"] = torch.nn.functional.conv_transpose2d(x, weight, bias, stride=2).relu().float()
    return case


@dataclass
class EachChannel(Case):
    """Every channel of every image is compared by its own magnitude."""

    def check(self, found: dict[str, torch.Tensor], label: str = "") -> None:
        truth = self.outputs["y"]
        size = truth.where(truth.isfinite(), 0).amax(dim=(2, 3), keepdim=True).clamp(min=1e-37)
        whole = Case(self.kernel, {}, {"y": truth / size}, tolerance=self.tolerance)
        whole.check({"y": found["y"].cpu() / size}, label)


def far_scales(**choices: Any) -> Case:
    """Images and channels of all magnitudes, an image of zeros, an infinity: each image finds a scale of its own."""
    case = conv(7, 9, 20, (6, 7), (3, 3), padding=1, **choices)
    x, weight, bias = (case.inputs[name] for name in ("x", "w", "bias"))
    bias.zero_()
    x *= (10.0 ** torch.tensor([-30.0, -8, -1, 0, 2, 5, 0]))[:, None, None, None]
    x[6] = 0.0
    weight *= (10.0 ** torch.linspace(-4, 4, 20))[:, None, None, None]
    x[3, 4, 2, 3] = torch.inf
    truth = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    case.outputs["y"] = truth.relu().float()
    return EachChannel(**vars(case))


# Transposed: strides 1 to 3 (and mixed ones), output padding, dilation, groups, all ranks, odd sizes, batch 1.
_TRANSPOSED: dict[str, Callable[..., Case]] = {
    "one": partial(conv, 2, 6, 4, (13,), (4,), padding=1),
    "one_two": partial(conv, 1, 5, 6, (11,), (3,), stride=2, padding=1, output_padding=1),
    "one_three": partial(conv, 2, 4, 6, (9,), (5,), stride=3, dilation=2, output_padding=2, groups=2),
    "one_four": partial(conv, 2, 4, 6, (12,), (8,), stride=4, padding=2, residual=True),
    "two_one": partial(conv, 2, 4, 6, (5, 8), (3, 3), padding=1, dilation=2),
    "two_two": partial(conv, 2, 9, 5, (5, 7), (4, 4), stride=2, padding=1, residual=True),
    "two_odd": partial(conv, 1, 4, 8, (5, 7), (3, 3), stride=2, padding=1, output_padding=1, groups=2),
    "two_three": partial(conv, 1, 3, 4, (6, 5), (3, 5), stride=3, output_padding=(1, 2), padding=(0, 2)),
    "two_gaps": partial(conv, 2, 4, 3, (6, 5), (1, 2), stride=3, output_padding=1),
    "two_common": partial(conv, 1, 4, 3, (5, 6), (3, 3), stride=2, dilation=2, padding=1),
    "two_mixed": partial(conv, 2, 4, 6, (5, 9), (3, 4), stride=(2, 1), dilation=(1, 2), padding=(1, 0)),
    "two_depthwise": partial(conv, 2, 6, 6, (7, 9), (4, 4), stride=2, padding=1, groups=6),
    "two_short": partial(conv, 1, 3, 3, (1, 1), (1, 2), stride=3),
    "three_one": partial(conv, 1, 4, 3, (4, 3, 5), (3, 2, 3), padding=(1, 0, 1)),
    "three_two": partial(conv, 2, 3, 10, (3, 4, 5), (3, 3, 3), stride=2, padding=1, output_padding=1),
    "three_three": partial(conv, 1, 4, 6, (3, 2, 4), (3, 4, 3), stride=(1, 2, 3), groups=2, output_padding=(0, 1, 2)),
    "three_double": partial(conv, 1, 4, 3, (2, 3, 4), (3, 3, 3), stride=2, dtype="float64"),
}
# Depthwise (with multipliers too) and groups of 2, 4 and 8 channels.
_GROUPED: dict[str, Callable[..., Case]] = {
    "depthwise": partial(conv, 2, 6, 6, (9, 16), (3, 3), padding=1, groups=6),
    "depthwise_cropped": partial(conv, 1, 3, 3, (11, 12), (3, 3), groups=3, residual=True),
    "depthwise_odd": partial(conv, 2, 3, 3, (7, 7), (5, 3), padding=(2, 1), groups=3),
    "depthwise_multiplied": partial(conv, 2, 5, 15, (8, 9), (3, 3), padding=1, groups=5),
    "depthwise_strided": partial(conv, 2, 4, 8, (13, 16), (3, 3), stride=2, padding=1, groups=4),
    "depthwise_far": partial(conv, 1, 4, 4, (12, 20), (3, 3), dilation=(2, 5), padding=(2, 5), groups=4),
    "depthwise_large": partial(conv, 1, 2, 2, (20, 16), (17, 15), padding=(8, 7), groups=2),
    "depthwise_row": partial(conv, 2, 4, 4, (37,), (4,), padding=3, groups=4),
    "depthwise_column": partial(conv, 2, 4, 4, (21, 1), (3, 1), groups=4),
    "depthwise_three": partial(conv, 1, 3, 3, (4, 5, 8), (3, 3, 3), padding=1, stride=(1, 2, 1), groups=3),
    "depthwise_last": partial(conv, 2, 8, 8, (6, 8), (3, 3), padding=1, groups=8, last=True),
    "pairs": partial(conv, 2, 6, 6, (8, 9), (3, 3), padding=1, groups=3),
    "fours": partial(conv, 1, 12, 12, (9, 12), (3, 3), padding=1, groups=3),
    "eights": partial(conv, 1, 16, 16, (6, 8), (3, 3), groups=2),
    "colours": partial(conv, 2, 9, 3, (8, 8), (5, 5), padding=2),
    "pointwise": partial(conv, 3, 6, 8, (5, 7), (1, 1), groups=2, residual=True),
    "double": partial(conv, 1, 3, 3, (6, 10), (3, 3), groups=3, dtype="float64"),
    "tall": partial(conv, 1, 3, 3, (19, 24), (3, 3), padding=1, groups=3, rows=4, threads=64),
    "wide": partial(conv, 1, 4, 4, (6, 40), (3, 3), padding=1, groups=2, outputs=8, channels=1),
}
FEW: dict[str, Any] = {"algorithm": "direct", "weights": "shared"}
_BOTH = ("depthwise_multiplied", "depthwise_three", "pairs", "eights", "pointwise")

CONVOLUTIONS: dict[str, Callable[[], Case]] = {
    "conv": lambda: conv(2, 5, 12, (9, 8), (3, 3), padding=1),
    "conv_odd": lambda: conv(2, 5, 33, (9, 7), (3, 3), padding=1, residual=True),
    "conv_strided": lambda: conv(2, 6, 8, (11, 9), (3, 2), stride=2, dilation=2, padding=2, groups=2, last=True),
    "conv_three": lambda: conv(1, 3, 4, (5, 6, 7), (2, 3, 2)),
    "conv_wide_tile": lambda: conv(
        3, 4, 40, (9, 9), (3, 3), padding=1, tile_m=128, tile_n=128, thread_m=4, thread_n=4, tile_k=8, stages=1
    ),
    "conv_transposed_tiled": lambda: conv(2, 9, 36, (6, 7), (4, 4), stride=2, padding=1, transposed=True),
    # Taps in one word of bits, in two, in none, and too many for constant memory.
    "conv_49_taps": lambda: conv(1, 3, 12, (9, 8), (7, 7), padding=3),
    "conv_81_taps": lambda: conv(1, 3, 12, (9, 7), (9, 9), padding=4),
    "conv_t_530_taps": lambda: conv(1, 2, 12, (30,), (530,), stride=2, padding=9, transposed=True),
    "conv_infinite_gemm": lambda: infinite_weight(algorithm=TILED),
    "conv_infinite_direct": lambda: infinite_weight(algorithm="direct"),
    **{
        f"conv_t_{name}_gemm": partial(make, transposed=True, algorithm="implicit_gemm")
        for name, make in _TRANSPOSED.items()
    },
    **{f"conv_t_{name}": partial(make, transposed=True, algorithm="direct") for name, make in _TRANSPOSED.items()},
    **{f"conv_{name}": partial(make, algorithm="direct") for name, make in _GROUPED.items()},
    **{f"conv_{name}_gemm": partial(_GROUPED[name], algorithm="implicit_gemm") for name in _BOTH},
    # Few input channels, weights in shared memory.
    "conv_few": lambda: conv(2, 3, 16, (5, 6, 16), (3, 3, 3), weights="shared", channels=8, rows=2),
    "conv_few_wide": lambda: conv(1, 3, 48, (4, 5, 12), (2, 3, 3), padding=1, **FEW, channels=16),
    "conv_few_odd": lambda: conv(3, 5, 18, (7, 9), (3, 3), padding=1, residual=True, **FEW, channels=6, rows=2),
    "conv_few_groups": lambda: conv(2, 8, 24, (9, 8), (3, 5), stride=2, groups=2, **FEW, channels=4, threads=64),
    "conv_few_t": partial(_TRANSPOSED["three_two"], transposed=True, **FEW, channels=2),
    # Steps shared by several blocks: a last part that is shorter or empty, groups, a residual, edges.
    "conv_split": lambda: conv(2, 30, 12, (7, 7), (3, 3), padding=1, algorithm=TILED, splits=4),
    "conv_split_groups": lambda: conv(2, 48, 16, (8, 6), (3, 3), groups=2, stride=2, algorithm=TILED, splits=8),
    "mma_conv_split": lambda: conv(2, 40, 33, (9, 7), (3, 3), padding=1, residual=True, precision="tf32x3", splits=4),
    # Through a packed copy: phases, groups, strides, one and several tiles of channels, both sides of a tile's edges.
    **{
        f"last_t_{name}": partial(_TRANSPOSED[name], transposed=True, algorithm=PACKED, precision="half3")
        for name in ("two_odd", "two_gaps", "three_two")
    },
    "last": lambda: conv(3, 20, 64, (13, 11), (3, 3), padding=1, algorithm=PACKED, precision="half", turns=3, stages=4),
    "last_odd": lambda: conv(2, 12, 33, (9, 7), (3, 3), padding=1, residual=True, algorithm=PACKED, precision="tf32"),
    "last_strided": lambda: conv(
        *(2, 6, 20, (11, 9), (3, 2)),
        stride=2,
        dilation=2,
        padding=2,
        groups=2,
        last=True,
        algorithm=PACKED,
        precision="half3",
        near="yes",
        stages=5,
    ),
    "last_wide": lambda: conv(1, 70, 150, (6, 7), (3, 3), padding=1, algorithm=PACKED, precision="half"),
    # Neighbouring pixels of a lane: tiles of 64, 128 and 256, groups, a residual, images of a part of a tile, edges.
    "last_pairs": lambda: conv(
        3, 20, 33, (9, 10), (3, 3), padding=1, residual=True, **_NEAR, tile_pixels=64, neighbours=2
    ),
    "last_fours": lambda: conv(5, 24, 48, (8, 9), (3, 2), padding=1, groups=2, **_NEAR, tile_pixels=128, neighbours=4),
    "last_pairs_of_two": lambda: conv(2, 20, 33, (9, 14), (3, 3), padding=1, **_NEAR, tile_pixels=128, neighbours=2),
    "last_fours_three": lambda: conv(
        1, 12, 16, (9, 12, 8), (3, 3, 3), padding=1, **_NEAR, tile_pixels=256, neighbours=4
    ),
    # Planes of pixels as they are: tiles and channels that are not full, more tiles than blocks, both ways to store.
    "planes": lambda: pointwise(2, 40, 33, (12, 11), residual=True, stages=2),
    "planes_rows": lambda: pointwise(3, 32, 48, (14, 14), stores="rows"),
    "planes_wide": lambda: pointwise(1, 8, 150, (4, 5, 9), warpgroups=3, stages=2, tile_channels=64, stores="rows"),
    "last_scales": lambda: far_scales(algorithm=PACKED, precision="half"),
    # On tensor cores: stores of four and of one, edges of all kinds, phases, groups, an infinite weight.
    "mma_conv": lambda: conv(2, 12, 40, (9, 8), (3, 3), padding=1, precision="tf32", algorithm=TILED, path="mma"),
    "mma_conv_odd": lambda: conv(2, 5, 33, (9, 7), (3, 3), padding=1, residual=True, precision="tf32x3"),
    "mma_conv_strided": lambda: conv(
        2, 6, 20, (11, 9), (3, 2), stride=2, dilation=2, padding=2, groups=2, last=True, precision="tf32x3"
    ),
    "mma_conv_three": lambda: conv(
        1, 3, 24, (5, 6, 7), (2, 3, 2), precision="tf32x3", tile_m=64, tile_n=64, warp_m=32, warp_n=32
    ),
    "mma_conv_81_taps": lambda: conv(
        1, 3, 12, (9, 7), (9, 9), padding=4, precision="tf32", algorithm=TILED, path="mma"
    ),
    "mma_conv_infinite": lambda: infinite_weight(algorithm=TILED, precision="tf32x3"),
    "wgmma_conv": lambda: conv(2, 12, 40, (9, 8), (3, 3), padding=1, precision="tf32", algorithm=TILED, path="wgmma"),
    "wgmma_conv_odd": lambda: conv(
        2, 5, 65, (9, 7), (3, 3), padding=1, residual=True, precision="tf32", algorithm=TILED, path="wgmma", stages=3
    ),
    "wgmma_conv_strided": lambda: conv(
        *(2, 6, 20, (11, 9), (3, 2)),
        stride=2,
        dilation=2,
        padding=2,
        groups=2,
        last=True,
        precision="tf32",
        algorithm=TILED,
        path="wgmma",
    ),
    "wgmma_conv_t_two_two": partial(
        _TRANSPOSED["two_two"], transposed=True, algorithm=TILED, precision="tf32", path="wgmma"
    ),
    "wgmma_conv_t_three_two": partial(
        _TRANSPOSED["three_two"], transposed=True, algorithm=TILED, precision="tf32", path="wgmma"
    ),
    **{
        f"mma_conv_t_{name}": partial(_TRANSPOSED[name], transposed=True, algorithm=TILED, precision="tf32x3")
        for name in ("one_three", "two_two", "two_odd", "two_mixed", "three_two")
    },
}
CONVOLUTIONS_SIXTEEN_BIT: dict[str, Callable[[], Case]] = {
    "conv_half": lambda: conv(2, 5, 12, (9, 8), (3, 3), padding=1, dtype="float16"),
    "conv_t_bfloat16": lambda: conv(2, 6, 24, (5, 8), (4, 4), stride=2, padding=1, transposed=True, dtype="bfloat16"),
    "mma_conv_half": lambda: conv(
        2, 8, 40, (9, 8), (3, 3), padding=1, dtype="float16", precision="float16", algorithm=TILED, path="mma"
    ),
    "wgmma_conv_half": lambda: conv(
        2, 8, 40, (9, 8), (3, 3), padding=1, dtype="float16", precision="float16", algorithm=TILED, path="wgmma"
    ),
    "mma_conv_t_bfloat16": lambda: conv(
        2,
        6,
        24,
        (5, 7),
        (4, 4),
        stride=2,
        padding=1,
        transposed=True,
        dtype="bfloat16",
        precision="bfloat16",
        algorithm=TILED,
        path="mma",
    ),
    "last_t_bfloat16": lambda: conv(
        2, 6, 24, (5, 7), (4, 4), stride=2, padding=1, transposed=True, dtype="bfloat16", algorithm=PACKED
    ),
    "conv_depthwise_half": lambda: conv(2, 6, 6, (9, 16), (3, 3), padding=1, groups=6, dtype="float16", residual=True),
    "conv_t_depthwise_bfloat16": lambda: conv(
        2, 6, 6, (9, 16), (3, 3), stride=2, groups=6, transposed=True, output_padding=1, dtype="bfloat16"
    ),
}
