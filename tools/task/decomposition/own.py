"""Decompositions that PyTorch lacks, written in its own operators: the ladder uses them beside PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Counts of numbers in bins of equal width; equal bounds stand for the least and the greatest number."""
    flat = x.reshape(-1)
    low: Any = min
    high: Any = max
    if min == max:
        low, high = flat.amin(), flat.amax()
        is_flat = low == high
        low, high = torch.where(is_flat, low - 1, low), torch.where(is_flat, high + 1, high)
    inside = (flat >= low) & (flat <= high)
    place = torch.where(inside, (flat - low) * bins / (high - low), 0.0).to(torch.int64).clamp(0, bins - 1)
    return x.new_zeros(bins).scatter_add(0, place, inside.to(x.dtype))


def median_of_all(x: torch.Tensor) -> torch.Tensor:
    """The median of all elements."""
    return torch.median(x.reshape(-1), 0).values


def nanmedian_of_all(x: torch.Tensor) -> torch.Tensor:
    """The median of all elements but NaN."""
    return nanmedian(x.reshape(-1), 0)[0]


def nanmedian(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The median along a dimension without NaN, which a sort puts last."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, order = torch.sort(x, dim)
    known = (~torch.isnan(x)).sum(dim, keepdim=True)
    middle = ((known - 1) // 2).clamp(min=0)
    found = values.gather(dim, middle), order.gather(dim, middle)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


def masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Elements where the mask is true, replaced by the source's elements in their order."""
    x, mask = aten.broadcast_tensors.default([x, mask])
    taken = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(mask, source.reshape(-1)[taken].reshape(x.shape), x)


def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Elements written at flat indices."""
    flat = torch.index_put(x.reshape(-1), (index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


def addbmm(
    x: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """A sum of products, added to a tensor."""
    total = torch.bmm(one, other).sum(0) * alpha
    return total.expand(x.shape) if beta == 0 else x * beta + total


def segment_reduce(
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> torch.Tensor:
    """Rows reduced over segments that lie one after the other; empty segments have the initial value."""
    neutral = {"sum": 0.0, "mean": float("nan"), "prod": 1.0, "max": -torch.inf, "min": torch.inf}[reduce]
    first = neutral if initial is None else initial
    if offsets is not None:
        ends = offsets[..., 1:]
    elif lengths is not None:
        ends = torch.cumsum(lengths, axis)
    else:
        raise NotImplementedError("segments by indices")
    rows = torch.arange(data.shape[axis], dtype=ends.dtype).expand(*ends.shape[:-1], data.shape[axis])
    place = torch.searchsorted(ends.contiguous(), rows.contiguous(), right=True)
    place = place.reshape(*place.shape, *(1,) * (data.dim() - axis - 1)).expand(data.shape)
    kind = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    start = data.new_full((*ends.shape, *data.shape[axis + 1 :]), first)
    return start.scatter_reduce(axis, place, data, kind, include_self=reduce != "mean")


def diagonal_scatter(x: torch.Tensor, source: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The tensor with a diagonal replaced."""
    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = torch.arange(moved.shape[-2])[:, None], torch.arange(moved.shape[-1])[None, :]
    place = (rows if offset >= 0 else columns).expand(moved.shape[-2:]).clamp(max=max(source.shape[-1] - 1, 0))
    found = torch.where(columns - rows == offset, source[..., place], moved)
    return found.movedim((-2, -1), (dim1, dim2))


def as_strided_scatter(
    x: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """The tensor with elements replaced that lie at steps in its memory."""
    if not x.is_contiguous():
        raise NotImplementedError("memory in another order")
    place = torch.full([], storage_offset or 0, dtype=torch.int64)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        place = place + (torch.arange(count) * step).reshape([-1, *(1,) * (len(size) - axis - 1)])
    return torch.index_put(x.reshape(-1), (place.reshape(-1),), source.reshape(-1)).reshape(x.shape)


def nonzero_static(x: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """The first places of elements that are not zero, as many as asked for."""
    flat = (x != 0).reshape(-1)
    place = flat.to(torch.int64).cumsum(0) - 1
    place = torch.where(flat & (place < size), place, size)
    found = torch.full((size + 1,), -1, dtype=torch.int64).scatter(0, place, torch.arange(flat.numel()))[:size]
    columns = []
    for step, count in zip(_steps(x.shape), x.shape, strict=True):
        columns.append(torch.where(found < 0, fill_value, found // step % count))
    return torch.stack(columns, 1) if columns else found.new_zeros((size, 0))


def _steps(shape: Sequence[int]) -> list[int]:
    """Elements from one index of each dimension to the next."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def rrelu(
    x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> torch.Tensor:
    """Outside of training a leaky ReLU with the mean slope."""
    if training:
        raise NotImplementedError("random slopes")
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)


def bilinear(
    one: torch.Tensor, other: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """A form that is linear in both inputs: a product with the first, then a weighted sum with the second."""
    outputs, width, depth = weight.shape
    first = one.reshape(-1, width) @ weight.permute(1, 0, 2).reshape(width, outputs * depth)
    found = (first.reshape(-1, outputs, depth) * other.reshape(-1, 1, depth)).sum(-1)
    found = found.reshape(*one.shape[:-1], outputs)
    return found if bias is None else found + bias


def spherical_bessel_j0(x: torch.Tensor) -> torch.Tensor:
    """sin(x) / x, near 0 by its series."""
    square = x * x
    near = 1 - square / 6 * (1 - square / 20 * (1 - square / 42 * (1 - square / 72 * (1 - square / 110))))
    far = torch.where(torch.isinf(x), 0.0, torch.sin(x) / x)
    return torch.where(x.abs() < 0.5, near, far)


def repeat_interleave(
    x: torch.Tensor, repeats: torch.Tensor, dim: int | None = None, *, output_size: int | None = None
) -> torch.Tensor:
    """Slices repeated by numbers of their own, where the size of the result is given."""
    if output_size is None:
        raise NotImplementedError("a size that depends on values")
    x, axis = (x.reshape(-1), 0) if dim is None else (x, dim)
    ends = repeats.expand(x.shape[axis]).to(torch.int64).cumsum(0)
    index = torch.searchsorted(ends, torch.arange(output_size), right=True)
    return x.index_select(axis, index)


def _avg_pool(kind: Any, rank: int) -> Callable[..., Any]:
    """Average pools whose last windows reach beyond the padding: over a padded tensor, whose zeros count."""

    def pool(
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        """The pool over a padded tensor, cut to the operator's windows; NotImplemented where none reaches beyond."""
        kernel, pads = (list(item) * rank if len(item) == 1 else list(item) for item in (kernel_size, padding))
        steps = kernel if not stride else list(stride) * rank if len(stride) == 1 else list(stride)
        if not ceil_mode or not count_include_pad or not any(pads):
            return NotImplemented
        padded = torch.nn.functional.pad(x, [pad for pad in reversed(pads) for _ in range(2)])
        options = {} if divisor_override is None else {"divisor_override": divisor_override}
        found = kind(padded, kernel, steps, ceil_mode=True, count_include_pad=False, **options)
        for axis, (width, step, pad) in enumerate(zip(kernel, steps, pads, strict=True), x.dim() - rank):
            size = x.shape[axis]
            count = -((width - size - 2 * pad) // step) + 1
            found = found.narrow(axis, 0, count - ((count - 1) * step >= size + pad))
        return found

    return pool


OWN: dict[Any, Callable[..., Any]] = {
    aten.avg_pool1d.default: _avg_pool(aten.avg_pool1d.default, 1),
    aten.avg_pool2d.default: _avg_pool(aten.avg_pool2d.default, 2),
    aten.avg_pool3d.default: _avg_pool(aten.avg_pool3d.default, 3),
    aten.repeat_interleave.self_Tensor: repeat_interleave,
    aten.histc.default: histc,
    aten.diagonal_scatter.default: diagonal_scatter,
    aten.as_strided_scatter.default: as_strided_scatter,
    aten.nonzero_static.default: nonzero_static,
    aten.rrelu.default: rrelu,
    aten.bilinear.default: bilinear,
    aten.special_spherical_bessel_j0.default: spherical_bessel_j0,
    aten.median.default: median_of_all,
    aten.nanmedian.default: nanmedian_of_all,
    aten.nanmedian.dim: nanmedian,
    aten.masked_scatter.default: masked_scatter,
    aten.put.default: put,
    aten.addbmm.default: addbmm,
    aten.segment_reduce.default: segment_reduce,
}
