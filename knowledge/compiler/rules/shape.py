"""Lowers views, copies into parts of a buffer, and tensors made of indices."""

from __future__ import annotations

from foundry.knowledge.compiler.ir.kernels import Const, Expr, Iota, Load, MapKernel, Store, View
from foundry.knowledge.compiler.ir.regions import Region
from foundry.knowledge.compiler.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    apply,
    argument,
    cast,
    const,
    integer,
    integers,
    number,
    rule,
)
from foundry.knowledge.compiler.rules.pointwise import operand, take
from foundry.knowledge.compiler.rules.resample import pad_from_inside, upsample_nearest
from foundry.knowledge.opgraph import Op, Ref, contiguous_strides

Shape = tuple[int, ...]


def _source(builder: Builder, op: Op) -> Tensor:
    """The operator's first tensor."""
    return builder.tensor_at(op, 0, "self")


# ---------------------------------------------------------------- views


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
def _reshape(builder: Builder, op: Op) -> None:
    """Lowers view, reshape and their relatives. Raises Unsupported for a view as another dtype."""
    if op.kind == "view" and op.outputs[0].spec.dtype != _source(builder, op).dtype:
        raise Unsupported("a view as another dtype")
    builder.bind(op, builder.reshape(_source(builder, op), op.outputs[0].spec.shape, op))


@rule("expand", "expand_as", "broadcast_to", "copy")
def _expand(builder: Builder, op: Op) -> None:
    """Lowers expand, broadcast_to and copy."""
    source = builder.tensor_at(op, 1, "src") if op.kind == "copy" else _source(builder, op)
    builder.bind(op, builder.expand(source, op.outputs[0].spec.shape, op))


@rule("broadcast_tensors")
def _broadcast_tensors(builder: Builder, op: Op) -> None:
    """Lowers broadcast_tensors."""
    items = op.args[0]
    assert isinstance(items, list)
    for output, item in enumerate(items):
        builder.bind(op, builder.expand(builder.tensor(item), op.outputs[output].spec.shape, op), output)


@rule("permute", "transpose", "t", "numpy_T", "swapaxes", "swapdims", "movedim", "moveaxis", "mT", "adjoint")
def _permute(builder: Builder, op: Op) -> None:
    """Lowers permute, transpose, movedim, mT and their relatives to a view with the dimensions in another order."""
    source = _source(builder, op)
    rank = len(source.shape)
    order = list(range(rank))
    if op.kind == "permute":
        order = [axis % rank for axis in integers(op, 1, "dims") or []]
    elif op.kind in ("transpose", "swapaxes", "swapdims") and rank:
        first, second = source.axis(integer(op, 1, "dim0")), source.axis(integer(op, 2, "dim1"))
        order[first], order[second] = order[second], order[first]
    elif op.kind in ("movedim", "moveaxis"):
        sources = [axis % rank for axis in integers(op, 1, "source") or []]
        targets = [axis % rank for axis in integers(op, 2, "destination") or []]
        rest = iter(axis for axis in range(rank) if axis not in sources)
        moved = dict(zip(targets, sources, strict=True))
        order = [moved[axis] if axis in moved else next(rest) for axis in range(rank)]
    elif op.kind in ("mT", "adjoint"):
        order[-2:] = [rank - 1, rank - 2]
    else:
        order.reverse()
    builder.bind(op, builder.permute(source, order, op))


@rule("slice", "narrow")
def _slice(builder: Builder, op: Op) -> None:
    """Lowers slice and narrow."""
    source = _source(builder, op)
    axis = source.axis(integer(op, 1, "dim", 0))
    size = source.shape[axis]
    step = 1
    if op.kind == "slice":
        given = argument(op, 2, "start")
        start = 0 if given is None else clip(integer(op, 2, "start"), size)
        step = integer(op, 4, "step", 1)
    else:
        start = clip(integer(op, 2, "start"), size)
    builder.bind(op, take(builder, op, source, axis, start, length=op.outputs[0].spec.shape[axis], step=step))


def clip(index: int, size: int) -> int:
    """A slice's start as a non-negative index, in 0 to `size`."""
    return min(max(index + size if index < 0 else index, 0), size)


@rule("select")
def _select(builder: Builder, op: Op) -> None:
    """Lowers select: one index of a dimension."""
    source = _source(builder, op)
    axis = source.axis(integer(op, 1, "dim"))
    part = take(builder, op, source, axis, start=integer(op, 2, "index") % source.shape[axis], length=1)
    builder.bind(op, builder.reshape(part, op.outputs[0].spec.shape, op))


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk", "unsafe_split")
def _split(builder: Builder, op: Op) -> None:
    """Lowers split and chunk."""
    source = _source(builder, op)
    axis = source.axis(integer(op, 2, "dim", 0))
    start = 0
    for output, value in enumerate(op.outputs):
        length = value.spec.shape[axis]
        builder.bind(op, take(builder, op, source, axis, start, length=length), output)
        start += length


@rule("unbind")
def _unbind(builder: Builder, op: Op) -> None:
    """Lowers unbind: each index of a dimension as an output."""
    source = _source(builder, op)
    axis = source.axis(integer(op, 1, "dim", 0))
    for output, value in enumerate(op.outputs):
        part = take(builder, op, source, axis, start=output, length=1)
        builder.bind(op, builder.reshape(part, value.spec.shape, op), output)


@rule("flip", "fliplr", "flipud")
def _flip(builder: Builder, op: Op) -> None:
    """Lowers flip, fliplr and flipud as views with negative strides."""
    source = _source(builder, op)
    dims = {"fliplr": [1], "flipud": [0]}.get(op.kind) or integers(op, 1, "dims") or []
    strides = list(contiguous_strides(source.shape))
    offset = 0
    for axis in {dim % len(source.shape) for dim in dims}:
        offset += (source.shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    builder.bind(op, builder.reindex(source, View(offset, tuple(strides)), source.shape, op))


@rule("diagonal", "linalg_diagonal")
def _diagonal(builder: Builder, op: Op) -> None:
    """Lowers diagonal as a view."""
    source = _source(builder, op)
    if op.kind == "linalg_diagonal":
        offset = 0
        first = len(source.shape) - 2
        second = len(source.shape) - 1
    else:
        offset = integer(op, 1, "offset", 0)
        first, second = source.axis(integer(op, 2, "dim1", 0)), source.axis(integer(op, 3, "dim2", 1))
    strides = contiguous_strides(source.shape)
    start = offset * strides[second] if offset >= 0 else -offset * strides[first]
    kept = [axis for axis in range(len(source.shape)) if axis not in (first, second)]
    steps = (*(strides[axis] for axis in kept), strides[first] + strides[second])
    builder.bind(op, builder.reindex(source, View(start, steps), op.outputs[0].spec.shape, op))


@rule("unfold")
def _unfold(builder: Builder, op: Op) -> None:
    """Lowers unfold: overlapping windows along a dimension, as a view."""
    source = _source(builder, op)
    if not source.shape:
        builder.bind(op, builder.reshape(source, op.outputs[0].spec.shape, op))
        return
    axis = source.axis(integer(op, 1, "dimension"))
    step = integer(op, 3, "step")
    strides = list(contiguous_strides(source.shape))
    window = strides[axis]
    strides[axis] *= step
    builder.bind(op, builder.reindex(source, View(0, (*strides, window)), op.outputs[0].spec.shape, op))


@rule("as_strided", "as_strided_copy")
def _as_strided(builder: Builder, op: Op) -> None:
    """Lowers as_strided of a tensor that is whole in memory. Raises Unsupported for others, whose elements may lie
    beside those of other tensors."""
    source, ref = _source(builder, op), op.args[0]
    assert isinstance(ref, Ref)
    value = builder.graph.values[ref.ref]
    if value.role == "op" or not value.spec.is_contiguous:
        raise Unsupported("parts of memory")
    steps, shape = integers(op, 2, "stride") or [], op.outputs[0].spec.shape
    start = integer(op, 3, "storage_offset", 0) if argument(op, 3, "storage_offset") is not None else 0
    if start + sum(step * (size - 1) for step, size in zip(steps, shape, strict=True)) >= source.numel:
        raise Unsupported("memory beyond a tensor")
    builder.bind(op, builder.reindex(source, View(start, tuple(steps)), shape, op))


@rule("repeat", "tile")
def _repeat(builder: Builder, op: Op) -> None:
    """Lowers repeat and tile."""
    source = _source(builder, op)
    target = op.outputs[0].spec.shape
    own = (1,) * (len(target) - len(source.shape)) + source.shape
    strides = contiguous_strides(own)
    shape: list[int] = []
    steps: list[int] = []
    for size, want, step in zip(own, target, strides, strict=True):
        shape += [want // size, size]
        steps += [0, step]
    spread = builder.reindex(source, View(0, tuple(steps)), tuple(shape), op)
    builder.bind(op, builder.reshape(spread, target, op))


@rule("repeat_interleave")
def _repeat_interleave(builder: Builder, op: Op) -> None:
    """Lowers repeat_interleave by a number. Raises Unsupported for a tensor of repeats."""
    source = _source(builder, op)
    if isinstance(argument(op, 1, "repeats"), Ref):
        raise Unsupported("repeat_interleave by a tensor")
    times = integer(op, 1, "repeats")
    if argument(op, 2, "dim") is None:
        source = builder.reshape(source, (source.numel,), op)
        axis = 0
    else:
        axis = source.axis(integer(op, 2, "dim"))
    _enlarge(builder, op, source, {axis: times})


def _enlarge(builder: Builder, op: Op, source: Tensor, times: dict[int, int]) -> None:
    """Binds `op` to the source with each element repeated in place along some dimensions."""
    strides = contiguous_strides(source.shape)
    shape: list[int] = []
    steps: list[int] = []
    for axis, (size, step) in enumerate(zip(source.shape, strides, strict=True)):
        shape += [size, times.get(axis, 1)]
        steps += [step, 0]
    spread = builder.reindex(source, View(0, tuple(steps)), tuple(shape), op)
    builder.bind(op, builder.reshape(spread, op.outputs[0].spec.shape, op))


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _upsample_nearest(builder: Builder, op: Op) -> None:
    """Lowers nearest upsampling: by whole factors as repetition, else by computed positions."""
    source = _source(builder, op)
    target = op.outputs[0].spec.shape
    if any(want % size for size, want in zip(source.shape, target, strict=True)):
        upsample_nearest(builder, op, 0.0)
        return
    times = {axis: target[axis] // size for axis, size in enumerate(source.shape)}
    _enlarge(builder, op, source, times)


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def _shuffle(builder: Builder, op: Op) -> None:
    """Lowers pixel_shuffle, pixel_unshuffle and channel_shuffle as permutations."""
    source = _source(builder, op)
    target = op.outputs[0].spec.shape
    *lead, channels, height, width = source.shape
    factor = integer(op, 1, "factor")
    base = len(lead)
    if op.kind == "pixel_shuffle":
        split = (*lead, channels // factor**2, factor, factor, height, width)
        order = [*range(base), base, base + 3, base + 1, base + 4, base + 2]
    elif op.kind == "pixel_unshuffle":
        split = (*lead, channels, height // factor, factor, width // factor, factor)
        order = [*range(base), base, base + 2, base + 4, base + 1, base + 3]
    else:
        split = (*lead, factor, channels // factor, height, width)
        order = [*range(base), base + 1, base, base + 2, base + 3]
    parts = builder.reshape(source, split, op)
    builder.bind(op, builder.reshape(builder.permute(parts, order, op), target, op))


# ---------------------------------------------------------------- several stores into one buffer


def store_part(builder: Builder, op: Op, target: Load, part: Tensor, view: View, tag: str) -> None:
    """Emits a map kernel that writes `part` to a region of `target`'s buffer."""
    store = Store(target.buffer, view, cast(part.expr, target.dtype))
    builder.emit(MapKernel(f"k_{target.buffer}_{tag}", part.shape, (store,), (op.name,)))


def new_buffer(builder: Builder, op: Op) -> tuple[Tensor, Load]:
    """The result of `op` as a buffer that several kernels write to."""
    value = op.outputs[0]
    tensor = builder.buffer(value.name, value.spec.shape, value.spec.dtype)
    assert isinstance(tensor.expr, Load)
    builder.tensors[value.name] = tensor
    return tensor, tensor.expr


def _fill_region(builder: Builder, op: Op, region: Region) -> None:
    """Lowers a concatenation that occupies a region of a longer one's buffer: writes the parts that are not there
    yet."""
    whole, shape = region.whole, op.outputs[0].spec.shape
    if whole.name not in builder.shared:
        builder.shared[whole.name] = builder.buffer(whole.name, whole.spec.shape, whole.spec.dtype)
    target = builder.shared[whole.name].expr
    assert isinstance(target, Load)
    strides = contiguous_strides(whole.spec.shape)
    step = strides[region.axis]
    for name, start in region.parts:
        if (whole.name, start) not in builder.filled:
            builder.filled.add((whole.name, start))
            store_part(
                builder, op, target, part=builder.tensors[name], view=View(start * step, strides), tag=f"from{start}"
            )
    view = View(region.start * step, strides)
    builder.tensors[op.name] = Tensor(shape, Load(target.buffer, view, target.dtype))


@rule("cat", "concat", "concatenate", "stack")
def _cat(builder: Builder, op: Op) -> None:
    """Lowers cat and stack with one store a part; parts may be written into the result's memory directly."""
    if op.name in builder.regions:
        _fill_region(builder, op, builder.regions[op.name])
        return
    items = op.args[0]
    assert isinstance(items, list)
    parts = [builder.tensor(item) for item in items]
    shape = op.outputs[0].spec.shape
    axis = integer(op, 1, "dim", 0) % len(shape)
    if op.kind == "stack":
        parts = [builder.reshape(part, (*part.shape[:axis], 1, *part.shape[axis:]), op) for part in parts]
    parts = [part for part in parts if part.numel]
    if len(parts) == 1:
        builder.bind(op, parts[0])
        return
    tensor, target = new_buffer(builder, op)
    strides = contiguous_strides(tensor.shape)
    start = 0
    for index, part in enumerate(parts):
        store_part(builder, op, target, part, view=View(start * strides[axis], strides), tag=f"part{index}")
        start += part.shape[axis]


@rule("cross", "linalg_cross")
def _cross(builder: Builder, op: Op) -> None:
    """Lowers cross, with one store per component, because each reads different components. Raises Unsupported unless
    the axis has three elements."""
    sides = [builder.expand(builder.tensor(item), op.outputs[0].spec.shape, op) for item in op.args[:2]]
    tensor, target = new_buffer(builder, op)
    dim = argument(op, 2, "dim", None if op.kind == "cross" else -1)
    axis = tensor.shape.index(3) if dim is None else tensor.axis(integer(op, 2, "dim", -1))
    if tensor.shape[axis] != 3:
        raise Unsupported("a cross product of other than three components")
    strides = contiguous_strides(tensor.shape)
    for place in range(3):
        u, v = (
            [take(builder, op, side, axis, start=(place + step) % 3, length=1).computed for step in (1, 2)]
            for side in sides
        )
        value = apply("sub", apply("mul", u[0], v[1]), apply("mul", u[1], v[0]))
        part = Tensor((*tensor.shape[:axis], 1, *tensor.shape[axis + 1 :]), value)
        store_part(builder, op, target, part, view=View(place * strides[axis], strides), tag=f"part{place}")


@rule("roll")
def _roll(builder: Builder, op: Op) -> None:
    """Lowers roll along each given dimension, or of the flattened tensor."""
    source = _source(builder, op)
    shape = source.shape
    shifts, dims = integers(op, 1, "shifts") or [], integers(op, 2, "dims") or []
    if not dims:
        source = builder.reshape(source, (source.numel,), op)
        dims = [0]
    for shift, dim in zip(shifts, dims, strict=True):
        source = _roll_axis(builder, op, source, source.axis(dim), shift)
    builder.bind(op, builder.reshape(source, shape, op))


def _roll_axis(builder: Builder, op: Op, source: Tensor, axis: int, shift: int) -> Tensor:
    """The tensor with its last `shift` slices moved to the front, by two stores to a new buffer."""
    size = source.shape[axis]
    shift %= size
    if shift == 0:
        return source
    tensor = builder.buffer(op.name, source.shape, source.dtype)
    assert isinstance(tensor.expr, Load)
    strides = contiguous_strides(tensor.shape)
    tail = take(builder, op, source, axis, start=size - shift, length=shift)
    head = take(builder, op, source, axis, start=0, length=size - shift)
    store_part(builder, op, tensor.expr, part=tail, view=View(0, strides), tag="tail")
    store_part(builder, op, tensor.expr, part=head, view=View(shift * strides[axis], strides), tag="head")
    return tensor


@rule("constant_pad_nd", "pad")
def _pad(builder: Builder, op: Op) -> None:
    """Lowers constant padding: fills the result, then stores the tensor inside; negative padding crops.

    Other modes read from inside the tensor (resample.py). Raises Unsupported if the padding value is a tensor.
    """
    mode = argument(op, 2, "mode", "constant") if op.kind == "pad" else "constant"
    if mode != "constant":
        pad_from_inside(builder, op, str(mode))
        return
    source = _source(builder, op)
    pads = integers(op, 1, "pad") or []
    fill = argument(op, 2 if op.kind == "constant_pad_nd" else 3, "value", 0)
    fill = 0 if fill is None else fill
    if not isinstance(fill, bool | int | float):
        raise Unsupported("padding with a tensor")
    target_shape = op.outputs[0].spec.shape
    rank = len(target_shape)
    before = [0] * rank
    for pair in range(len(pads) // 2):
        before[rank - 1 - pair] = pads[2 * pair]
    for axis, low in enumerate(before):  # a negative pad crops
        high = target_shape[axis] - source.shape[axis] - low
        if min(low, high) < 0:
            left = source.shape[axis] + min(low, 0) + min(high, 0)
            if left <= 0:
                builder.bind(op, Tensor(target_shape, const(fill, source.dtype)))
                return
            source = take(builder, op, source, axis, start=max(-low, 0), length=left)
    before = [max(start, 0) for start in before]
    if source.shape == target_shape:
        builder.bind(op, source)
        return
    tensor, target = new_buffer(builder, op)
    empty = Tensor(target_shape, const(fill, tensor.dtype))
    strides = contiguous_strides(target_shape)
    store_part(builder, op, target, part=empty, view=View(0, strides), tag="fill")
    offset = sum(start * step for start, step in zip(before, strides, strict=True))
    store_part(builder, op, target, part=source, view=View(offset, strides), tag="inside")


# ---------------------------------------------------------------- made of indices


def index_along(shape: Shape, axis: int) -> Expr:
    """The index along one dimension, as int64 over `shape`."""
    return Iota(View(0, tuple(int(dim == axis) for dim in range(len(shape)))), "int64")


@rule("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full")
def _full(builder: Builder, op: Op) -> None:
    """Lowers zeros, ones, full and their relatives as constants."""
    _filled(builder, op)


@rule("empty", "empty_like", "new_empty", "scalar_tensor", "fill", "zero")
def _filled(builder: Builder, op: Op) -> None:
    """Binds `op` to a constant; uninitialised tensors become zeros."""
    spec = op.outputs[0].spec
    kind = op.kind
    if kind == "fill" and isinstance(op.args[1], Ref):
        builder.bind(op, Tensor(spec.shape, operand(builder, op, op.args[1], spec.dtype)))
        return
    if "full" in kind:
        value = number(op, 2 if kind == "new_full" else 1, "fill_value")
    elif kind == "scalar_tensor":
        value = number(op, 0, "s")
    elif kind == "fill":
        value = number(op, 1, "value")
    else:
        value = 1 if "ones" in kind else 0
    builder.bind(op, Tensor(spec.shape, const(value, spec.dtype)))


@rule("arange")
def _arange(builder: Builder, op: Op) -> None:
    """Lowers arange."""
    spec = op.outputs[0].spec
    overload = op.target.rpartition(".")[2]
    start = number(op, 0, "start", 0) if overload != "default" else 0
    step = number(op, 2, "step", 1) if overload == "start_step" else 1
    if isinstance(start, int) and isinstance(step, int):
        expr: Expr = cast(Iota(View(start, (step,)), "int64"), spec.dtype)
    else:
        index = cast(Iota(View(0, (1,)), "int64"), spec.dtype)
        expr = apply("add", const(start, spec.dtype), apply("mul", index, const(step, spec.dtype)))
    builder.bind(op, Tensor(spec.shape, expr))


@rule("linspace")
def _linspace(builder: Builder, op: Op) -> None:
    """Lowers linspace. PyTorch counts the second half from the end, so that both ends are exact."""
    spec = op.outputs[0].spec
    start = number(op, 0, "start")
    end = number(op, 1, "end")
    steps = spec.shape[0]
    step = const((end - start) / max(steps - 1, 1), spec.dtype)
    index = Iota(View(0, (1,)), "int64")
    back = cast(Iota(View(steps - 1, (-1,)), "int64"), spec.dtype)
    low = apply("add", const(start, spec.dtype), apply("mul", cast(index, spec.dtype), step))
    high = apply("sub", const(end, spec.dtype), apply("mul", back, step))
    first_half = apply("lt", index, const(steps // 2, "int64"), dtype="bool")
    builder.bind(op, Tensor(spec.shape, apply("where", first_half, low, high, dtype=spec.dtype)))


@rule("eye")
def _eye(builder: Builder, op: Op) -> None:
    """Lowers eye."""
    spec = op.outputs[0].spec
    same = apply("eq", Iota(View(0, (1, -1)), "int64"), const(0, "int64"), dtype="bool")
    builder.bind(op, Tensor(spec.shape, cast(same, spec.dtype)))


@rule("triu", "tril")
def _triangle(builder: Builder, op: Op) -> None:
    """Lowers triu and tril: zero on the other side of the diagonal; of ones it is the mask itself."""
    source = _source(builder, op)
    distance = Iota(View(0, (*(0 for _ in source.shape[:-2]), -1, 1)), "int64")  # column - row
    diagonal = const(integer(op, 1, "diagonal", 0), "int64")
    kept = apply("ge" if op.kind == "triu" else "le", distance, diagonal, dtype="bool")
    if isinstance(source.expr, Const) and source.expr.value == 1:
        builder.bind(op, Tensor(source.shape, cast(kept, source.dtype)))
        return
    zero = const(0, source.dtype)
    builder.pointwise(op, apply("where", kept, source.expr, zero, dtype=source.dtype))


@rule("diag_embed", "diag")
def _diag_embed(builder: Builder, op: Op) -> None:
    """Lowers diag_embed and diag. Raises Unsupported for a shifted diagonal."""
    source = _source(builder, op)
    shape = op.outputs[0].spec.shape
    if op.kind == "diag" and len(source.shape) == 2:
        _diagonal(builder, Op(op.target, [*op.args[:2]], op.kwargs, op.outputs))
        return
    if len(shape) != len(source.shape) + 1 or integer(op, 1, "offset", 0) or len(op.args) > 2:
        raise Unsupported("a shifted or turned diagonal")
    spread = builder.expand(builder.reshape(source, (*source.shape, 1), op), shape, op)
    same = apply("eq", Iota(View(0, (*(0 for _ in shape[:-2]), 1, -1)), "int64"), const(0, "int64"), dtype="bool")
    builder.pointwise(op, apply("where", same, spread.expr, const(0, source.dtype), dtype=source.dtype))


@rule("one_hot")
def _one_hot(builder: Builder, op: Op) -> None:
    """Lowers one_hot."""
    source = _source(builder, op)
    shape = op.outputs[0].spec.shape
    classes = builder.expand(builder.reshape(source, (*source.shape, 1), op), shape, op)
    same = apply("eq", cast(classes.expr, "int64"), index_along(shape, len(shape) - 1), dtype="bool")
    builder.pointwise(op, cast(same, op.outputs[0].spec.dtype))
