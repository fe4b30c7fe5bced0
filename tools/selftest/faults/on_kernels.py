"""Faults in the structure of a kernel: sizes, windows, reductions, geometry, places of results. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from foundry.knowledge.compiler.ir.access import store_space, stores_of
from foundry.knowledge.compiler.ir.kernels import (
    AttentionKernel,
    ConvKernel,
    GemmKernel,
    Kernel,
    Load,
    MapKernel,
    Plan,
    PoolKernel,
    Reduction,
    RowKernel,
    ScanKernel,
    SegmentKernel,
    SelectKernel,
    SortKernel,
    Store,
    View,
)
from foundry.tools.selftest.faults.fault import Family, Fault, PlantableFault
from foundry.tools.selftest.faults.original import Original
from foundry.tools.selftest.faults.rewriting import is_bounded, stores_with

Found = tuple[Family, str, Kernel]

_OTHER_REDUCTION: dict[str, Any] = {"sum": "max", "prod": "sum", "max": "min", "min": "max", "any": "all", "all": "any"}


def faults(original: Original) -> Iterator[PlantableFault]:
    """Every structural fault that fits a kernel of the first captured shape."""
    for step, kernel, plan in original.kernels(0):
        for family, what, faulty in [*_by_template(kernel, plan), *_stores(kernel, plan)]:
            yield PlantableFault(Fault(family, what, kernel.name), _maker(original, step, faulty))


def _maker(original: Original, step: int, faulty: Kernel) -> Callable[[], str]:
    """A function that makes the candidate's text with step `step` of its first graph replaced by the faulty kernel."""
    return lambda: original.with_kernel(0, step, faulty)


def _by_template(kernel: Kernel, plan: Plan) -> Iterator[Found]:
    """Faults that fit the kernel's template, each with the faulty kernel."""
    match kernel:
        case MapKernel():
            yield from _shorter(kernel, "shape", kernel.shape)
        case RowKernel():
            yield from _rows(kernel, plan)
        case ScanKernel():
            yield from _scans(kernel)
        case SortKernel() if kernel.items > 1:
            yield "missing last element", "the last item is in no segment", _change(kernel, items=kernel.items - 1)
        case SegmentKernel():
            yield from _segments(kernel)
        case SelectKernel():
            yield from _selections(kernel)
        case GemmKernel():
            yield from _products(kernel)
        case ConvKernel():
            yield from _convolutions(kernel)
        case PoolKernel():
            yield from _pools(kernel)
        case AttentionKernel():
            yield from _attention(kernel)


def _change(kernel: Any, /, **fields: Any) -> Kernel:
    """The kernel with some fields replaced."""
    faulty: Kernel = replace(kernel, **fields)
    return faulty


def _shorter(kernel: Kernel, field: str, shape: tuple[int, ...], family: Family = "stale memory") -> Iterator[Found]:
    """Faults that compute one index less along the first or last dimension, so that its results are never written."""
    for dim in dict.fromkeys((0, len(shape) - 1)):
        if 0 <= dim < len(shape) and shape[dim] > 1:
            less = (*shape[:dim], shape[dim] - 1, *shape[dim + 1 :])
            what = f"only {shape[dim] - 1} of {shape[dim]} along dimension {dim} of {field} are computed"
            yield family, what, _change(kernel, **{field: less})


def _rows(kernel: RowKernel, plan: Plan) -> Iterator[Found]:
    """Faults of a row kernel: its sizes and its reductions."""
    yield from _shorter(kernel, "outer", kernel.outer)
    yield from _shorter(kernel, "reduced", kernel.reduced)
    reductions = [stage for stage in kernel.stages if isinstance(stage, Reduction)]
    if any(stage.op in ("sum", "moments", "prod") for stage in reductions):
        longer = (*kernel.reduced[:-1], kernel.reduced[-1] + 1)
        what = f"rows of {kernel.reduced[-1]} are read one element past their end"
        yield "missing bounds check", what, _change(kernel, reduced=longer)
    for stage in reductions:
        stabilises = stage.op in ("max", "min") and is_bounded(stage.value, plan)  # any number does
        if stage.op in _OTHER_REDUCTION and not stabilises:
            other = _OTHER_REDUCTION[stage.op]
            stages = tuple(replace(item, op=other) if item is stage else item for item in kernel.stages)
            yield "wrong reduction", f"{other} instead of {stage.op} in {stage.name}", _change(kernel, stages=stages)


def _scans(kernel: ScanKernel) -> Iterator[Found]:
    """Yields faults of a scan: a shorter shape, exclusive, reversed, another operation."""
    yield from _shorter(kernel, "shape", kernel.shape)
    yield "off by one", "the running value leaves its own element out", _change(kernel, exclusive=not kernel.exclusive)
    yield "wrong axis", "the scan runs from the other end", _change(kernel, reverse=not kernel.reverse)
    if kernel.op in _OTHER_REDUCTION:
        other = _OTHER_REDUCTION[kernel.op]
        yield "wrong reduction", f"running {other} instead of {kernel.op}", _change(kernel, op=other)


def _segments(kernel: SegmentKernel) -> Iterator[Found]:
    """Yields faults of a segment reduction: the last item left out, a shorter shape, another operation."""
    if kernel.in_place:
        yield "missing last element", "the last item is not written", _change(kernel, items=kernel.items - 1)
        return
    yield from _shorter(kernel, "shape", kernel.shape)
    if kernel.op in _OTHER_REDUCTION:
        other = _OTHER_REDUCTION[kernel.op]
        yield "wrong reduction", f"{other} instead of {kernel.op} of segments", _change(kernel, op=other)


def _selections(kernel: SelectKernel) -> Iterator[Found]:
    """Yields faults of a top-k selection: the last element left out, smallest for largest."""
    yield from _shorter(kernel, "outer", kernel.outer)
    if kernel.length > kernel.count:
        shorter = _change(kernel, length=kernel.length - 1)
        yield "missing last element", f"the last of a row's {kernel.length} elements is left out", shorter
    other = "smallest" if kernel.largest else "largest"
    yield "wrong reduction", f"the {other} elements are taken", _change(kernel, largest=not kernel.largest)


def _products(kernel: GemmKernel) -> Iterator[Found]:
    """Faults of a matrix product: one product or one column too few or too many."""
    yield (
        "missing last element",
        f"the sum stops at {kernel.k - 1} of {kernel.k} products",
        _change(kernel, k=kernel.k - 1),
    )
    yield (
        "missing bounds check",
        f"the sum runs to {kernel.k + 1} of {kernel.k} products",
        _change(kernel, k=kernel.k + 1),
    )
    if kernel.tail is not None:  # a reduction epilogue reads all rows
        return
    if kernel.m > 1:
        yield "stale memory", f"the last of {kernel.m} rows is never written", _change(kernel, m=kernel.m - 1)
    if kernel.n > 1:
        yield "stale memory", f"the last of {kernel.n} columns is never written", _change(kernel, n=kernel.n - 1)


def _convolutions(kernel: ConvKernel) -> Iterator[Found]:
    """Yields faults of a convolution: padding, dilation, an input shifted or transposed, a single channel."""
    for dim, padding in enumerate(kernel.padding):
        shifted = (*kernel.padding[:dim], padding - 1 if padding else 1, *kernel.padding[dim + 1 :])
        what = f"the window is shifted: padding {shifted[dim]} instead of {padding} along spatial dimension {dim}"
        yield "off by one", what, _change(kernel, padding=shifted)
        if kernel.kernel[dim] > 1 and not kernel.transposed:
            wider = (*kernel.dilation[:dim], kernel.dilation[dim] + 1, *kernel.dilation[dim + 1 :])
            what = f"dilation {wider[dim]} instead of {kernel.dilation[dim]} along spatial dimension {dim}"
            yield "wrong constant", what, _change(kernel, dilation=wider)
    what = "the input is read one element further"
    yield "off by one", what, _change(kernel, x_offset=kernel.x_offset + kernel.x_strides[-1])
    if len(kernel.input_size) > 1 and kernel.input_size[-1] == kernel.input_size[-2]:
        turned = (*kernel.x_strides[:-2], kernel.x_strides[-1], kernel.x_strides[-2])
        yield "wrong axis", "the images are read transposed", _change(kernel, x_strides=turned)
    flat = (*kernel.x_strides[:1], 0, *kernel.x_strides[2:])
    if kernel.in_channels > 1:
        yield "wrong axis", "every input channel is the first one", _change(kernel, x_strides=flat)


def _pools(kernel: PoolKernel) -> Iterator[Found]:
    """Yields faults of a pooling kernel: the other operation, padding, window size, the divisor at the border."""
    other: Any = "avg" if kernel.op == "max" else "max"
    yield "wrong reduction", f"{other} pooling instead of {kernel.op}", _change(kernel, op=other)
    for dim, padding in enumerate(kernel.padding if kernel.kernel else ()):
        shifted = (*kernel.padding[:dim], padding - 1 if padding else 1, *kernel.padding[dim + 1 :])
        what = f"the window is shifted: padding {shifted[dim]} instead of {padding} along spatial dimension {dim}"
        yield "off by one", what, _change(kernel, padding=shifted)
        if kernel.kernel[dim] > 1:
            smaller = (*kernel.kernel[:dim], kernel.kernel[dim] - 1, *kernel.kernel[dim + 1 :])
            what = f"windows of {smaller[dim]} instead of {kernel.kernel[dim]} along spatial dimension {dim}"
            yield "missing last element", what, _change(kernel, kernel=smaller)
    if kernel.op == "avg" and any(kernel.padding):
        flipped = not kernel.count_include_pad
        yield (
            "wrong reduction",
            "the divisor counts the border differently",
            _change(kernel, count_include_pad=flipped),
        )


def _attention(kernel: AttentionKernel) -> Iterator[Found]:
    """Yields faults of attention: scale, mask, exchanged or shifted operands, the last key or row left out."""
    yield (
        "wrong constant",
        f"scale {kernel.scale * 1.01:.6g} instead of {kernel.scale:.6g}",
        _change(kernel, scale=kernel.scale * 1.01),
    )
    yield "dropped operator", "the scores are not scaled", _change(kernel, scale=1.0)
    masked = "the causal mask is left out" if kernel.causal else "future positions are masked"
    yield "missing bounds check", masked, _change(kernel, causal=not kernel.causal)
    if kernel.mask is not None:
        yield "dropped operator", "the mask is not added", _change(kernel, mask=None)
    if kernel.rows == kernel.columns:
        yield "swapped order", "queries and keys change places", _change(kernel, q=kernel.k, k=kernel.q)
    if kernel.head == kernel.value_head:
        yield "swapped order", "keys and values change places", _change(kernel, k=kernel.v, v=kernel.k)
    what = f"the last of {kernel.columns} keys is left out"
    yield "missing last element", what, _change(kernel, columns=kernel.columns - 1)
    yield "stale memory", f"the last of {kernel.rows} rows is never written", _change(kernel, rows=kernel.rows - 1)
    for name in ("q", "k", "v"):
        load: Load = getattr(kernel, name)
        for dim, words in ((len(load.view.strides) - 1, "element"), (len(load.view.strides) - 2, "position")):
            shifted = replace(load, view=View(load.view.offset + load.view.strides[dim], load.view.strides))
            yield "off by one", f"{load.buffer} is read one {words} further", _change(kernel, **{name: shifted})
        if kernel.batch and load.view.strides[0]:
            first = replace(load, view=View(load.view.offset, (0, *load.view.strides[1:])))
            yield (
                "wrong axis",
                f"{load.buffer} is always that of the first batch point",
                _change(kernel, **{name: first}),
            )


# ---------------------------------------------------------------- where results go


def _stores(kernel: Kernel, plan: Plan) -> Iterator[Found]:
    """Faults in the place of results that leave the kernel file. A misplaced temporary may be summed all the same."""
    space = store_space(kernel)
    for at, store in enumerate(stores_of(kernel)):
        if plan.buffers[store.buffer].role != "output":
            continue
        for family, what, view in _misplace(store, space):
            yield family, what, stores_with(kernel, at, lambda item, view=view: replace(item, view=view))  # type: ignore[misc]


def _misplace(store: Store, space: tuple[int, ...]) -> Iterator[tuple[Family, str, View]]:
    """(family, description, wrong view) for one store."""
    strides = store.view.strides
    moving = [dim for dim, stride in enumerate(strides) if stride and space[dim] > 1]
    if not moving:
        return
    first, last = moving[0], moving[-1]
    flat = tuple(0 if dim == first else stride for dim, stride in enumerate(strides))
    yield (
        "wrong place",
        f"{store.buffer} is written without the index of dimension {first}",
        View(store.view.offset, flat),
    )
    turned = View(
        store.view.offset + strides[last] * (space[last] - 1), (*strides[:last], -strides[last], *strides[last + 1 :])
    )
    yield "wrong place", f"{store.buffer} is written backwards along dimension {last}", turned
    if first != last and space[first] == space[last]:
        swapped = list(strides)
        swapped[first], swapped[last] = swapped[last], swapped[first]
        yield "wrong axis", f"{store.buffer} is written transposed", View(store.view.offset, tuple(swapped))
