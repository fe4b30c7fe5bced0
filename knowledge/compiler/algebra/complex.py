"""Complex operators as operators on pairs of real tensors, before any rule: kernels know real numbers only.

A complex value becomes its real and its imaginary part. Inputs and parameters are seen through `view_as_real`, results
through `view_as_complex`: views, which PyTorch makes without work. An operator without a handler stays as it is between
such views (a Fourier transform), and PyTorch computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from foundry.knowledge.compiler.algebra.editor import without_unread
from foundry.knowledge.opgraph import Argument, DType, Op, OpGraph, Ref, TensorSpec, Value, contiguous_strides

Shape = tuple[int, ...]
Pair = tuple[Ref, Ref]

REAL: dict[DType, DType] = {"complex64": "float32", "complex128": "float64"}
VIEWS = frozenset({"view_as_real", "view_as_complex"})  # operators that PyTorch runs without work
# Operators that move elements, or add them up: the same for both parts.
_MOVING = """
    view reshape _unsafe_view flatten unflatten squeeze unsqueeze permute transpose t mT expand broadcast_to slice
    select narrow cat stack concat flip roll index_select gather repeat clone contiguous alias detach lift_fresh_copy
    resolve_conj resolve_neg neg sum mean cumsum diagonal tril triu movedim split split_with_sizes chunk unbind
    repeat_interleave index zeros_like index_add tile
"""
_OF_BOTH = frozenset(_MOVING.split())


@dataclass
class _Pass:
    """The operators of the new graph so far, and the pairs of its complex values."""

    graph: OpGraph
    longest_transform: int
    ops: list[Op] = field(default_factory=list)
    pairs: dict[str, Pair] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)  # complex values that exist as such

    def spec(self, item: Ref) -> TensorSpec:
        return self.specs.get(item.ref) or self.graph.values[item.ref].spec

    def is_complex(self, item: Argument) -> bool:
        return isinstance(item, Ref) and self.spec(item).dtype in REAL

    def emit(self, op: Op, target: str, args: list[Argument], shape: Shape, dtype: DType, name: str = "") -> Ref:
        """Adds an operator of `op`'s place; `name` is its result's, or a new one."""
        name = name or f"{op.name}_real{len(self.ops)}"
        spec = TensorSpec(shape, contiguous_strides(shape), dtype)
        flops = 0 if target.split(".")[1] in ("select", "stack", "expand", *VIEWS, *_OF_BOTH) else spec.numel
        made = Op(f"aten.{target.removeprefix('aten.')}", args, {}, [Value(name, spec, "op")])
        self.ops.append(replace(made, flops=flops, module=op.module, line=op.line))
        self.specs[name] = spec
        return Ref(name)

    def parts(self, op: Op, item: Argument) -> Pair:
        """The real and imaginary part of a complex value."""
        assert isinstance(item, Ref)
        if item.ref not in self.pairs:
            spec = self.spec(item)
            real = self.emit(op, "aten.view_as_real.default", [item], (*spec.shape, 2), REAL[spec.dtype])
            self.pairs[item.ref] = self.halves(op, real)
        return self.pairs[item.ref]

    def halves(self, op: Op, item: Ref) -> Pair:
        """Both parts of a real tensor that has them in its last dimension."""
        spec = self.spec(item)
        one, other = (
            self.emit(op, "aten.select.int", [item, len(spec.shape) - 1, number], spec.shape[:-1], spec.dtype)
            for number in (0, 1)
        )
        return one, other

    def joined(self, op: Op, pair: Pair) -> Ref:
        """A real tensor with both parts in its last dimension."""
        spec = self.spec(pair[0])
        return self.emit(op, "aten.stack.default", [list(pair), len(spec.shape)], (*spec.shape, 2), spec.dtype)

    def materialise(self, op: Op, name: str) -> None:
        """Adds a complex value itself, for PyTorch or as a result."""
        if name in self.pairs and name not in self.made and self.graph.producers.get(name) is not None:
            self.made.add(name)
            spec = self.graph.values[name].spec
            self.emit(
                op,
                "aten.view_as_complex.default",
                [self.joined(op, self.pairs[name])],
                spec.shape,
                spec.dtype,
                name=name,
            )

    # ------------------------------------------------ arithmetic on parts

    def two(self, op: Op, kind: str, one: Argument, other: Argument) -> Ref:
        """A pointwise operator of two tensors, or of a tensor and a number."""
        shapes = [self.spec(item).shape for item in (one, other) if isinstance(item, Ref)]
        dtype = op.outputs[0].spec.dtype
        overload = "Tensor" if kind in ("add", "sub", "mul", "div") else "default"
        return self.emit(op, f"aten.{kind}.{overload}", [one, other], _broadcast(*shapes), REAL.get(dtype, dtype))

    def one(self, op: Op, kind: str, item: Ref) -> Ref:
        """A pointwise operator of one tensor, in its shape and dtype."""
        spec = self.spec(item)
        return self.emit(op, f"aten.{kind}.default", [item], spec.shape, spec.dtype)

    def expanded(self, op: Op, item: Ref, shape: Shape) -> Ref:
        """The value expanded to this shape; itself if it has that."""
        spec = self.spec(item)
        if spec.shape == shape:
            return item
        return self.emit(op, "aten.expand.default", [item, list(shape)], shape, spec.dtype)


def without_complex(graph: OpGraph, longest_transform: int) -> OpGraph:
    """The graph with real operators in place of complex ones; the graph itself if it has none.

    Short-time transforms of up to `longest_transform` elements become products; PyTorch computes longer ones in fewer
    steps.
    """
    if not any(value.spec.dtype in REAL for value in graph.values.values()):
        return graph
    made = _Pass(graph, longest_transform)
    for op in graph.ops:
        touched = [name for name in op.reads if made.is_complex(Ref(name))]
        if not touched and not any(value.spec.dtype in REAL for value in op.outputs):
            made.ops.append(op)
            continue
        length, pairs = len(made.ops), dict(made.pairs)
        if not _replace(made, op):
            del made.ops[length:]
            made.pairs = pairs
            for name in dict.fromkeys(touched):
                made.materialise(op, name)
            made.ops.append(op)
            made.made |= {value.name for value in op.outputs}
    last = graph.ops[-1]
    for name in dict.fromkeys([*graph.output_names, *graph.mutations.values()]):
        made.materialise(last, name)
    return without_unread(replace(graph, ops=made.ops))


def _replace(made: _Pass, op: Op) -> bool:
    """Adds real operators for a complex one. False if there is no way."""
    handler = _HANDLERS.get(op.kind)
    if handler is not None:
        found = handler(made, op)
        if found is None:
            return False
        value = op.outputs[0]
        if isinstance(found, Ref):
            made.emit(op, "aten.alias.default", [found], value.spec.shape, value.spec.dtype, name=value.name)
        else:
            one, other = (made.expanded(op, part, value.spec.shape) for part in found)
            made.pairs[value.name] = one, other
        return True
    return op.kind in _OF_BOTH and _of_both(made, op)


def _of_both(made: _Pass, op: Op) -> bool:
    """Makes the operator on the real parts, then on the imaginary parts. False, and nothing made, if a result is not
    complex."""
    if any(value.spec.dtype not in REAL for value in op.outputs) or op.kwargs.get("dtype") is not None:
        return False
    results: list[list[Ref]] = []
    for part in (0, 1):

        def visit(item: Argument, part: int = part) -> Argument:
            """The argument with each complex value replaced by this part of it, also within lists."""
            if isinstance(item, list):
                return [visit(member) for member in item]
            return made.parts(op, item)[part] if made.is_complex(item) else item

        outputs = []
        args, kwargs = [visit(item) for item in op.args], {key: visit(item) for key, item in op.kwargs.items()}
        for value in op.outputs:
            spec = TensorSpec(value.spec.shape, contiguous_strides(value.spec.shape), REAL[value.spec.dtype])
            outputs.append(Value(f"{value.name}_part{part}", spec, "op"))
            made.specs[outputs[-1].name] = spec
        made.ops.append(replace(op, args=args, kwargs=kwargs, outputs=outputs, flops=op.flops // 2))
        results.append([Ref(value.name) for value in outputs])
    for value, *pair in zip(op.outputs, *results, strict=True):
        made.pairs[value.name] = pair[0], pair[1]
    return True


# ---------------------------------------------------------------- operators


def _operand(made: _Pass, op: Op, item: Argument) -> tuple[Argument, Argument | None]:
    """(real part, imaginary part or None) of a tensor or a number."""
    return made.parts(op, item) if made.is_complex(item) else (item, None)


def _add(made: _Pass, op: Op) -> Pair | None:
    """The sum or difference; None with an `alpha` other than 1."""
    alpha = op.kwargs.get("alpha", op.args[2] if len(op.args) > 2 else 1)
    if alpha != 1:
        return None
    (a, b), (c, d) = (_operand(made, op, item) for item in op.args[:2])
    if op.kind == "rsub":
        (a, b), (c, d) = (c, d), (a, b)
    kind = "add" if op.kind == "add" else "sub"
    imaginary = made.two(op, kind, b, d) if b is not None and d is not None else b if d is None else d
    assert isinstance(imaginary, Ref)
    if b is None and kind == "sub":
        imaginary = made.one(op, "neg", imaginary)
    return made.two(op, kind, a, c), imaginary


def _product(made: _Pass, op: Op, one: Argument, other: Argument) -> Pair:
    """The product: four real ones, or two if one side is real."""
    (a, b), (c, d) = _operand(made, op, one), _operand(made, op, other)
    if d is None or b is None:
        factor, (real, imaginary) = (c, (a, b)) if d is None else (a, (c, d))
        return made.two(op, "mul", real, factor), made.two(op, "mul", imaginary, factor)
    real = made.two(op, "sub", made.two(op, "mul", a, c), made.two(op, "mul", b, d))
    return real, made.two(op, "add", made.two(op, "mul", a, d), made.two(op, "mul", b, c))


def _quotient(made: _Pass, op: Op, one: Argument, other: Argument) -> Pair:
    """The quotient; the divisor is divided by its larger part first, so that no square overflows."""
    (a, b), (c, d) = _operand(made, op, one), _operand(made, op, other)
    if d is None:
        return made.two(op, "div", a, c), made.two(op, "div", b, c)
    assert isinstance(c, Ref) and isinstance(d, Ref)
    size = made.two(op, "maximum", made.one(op, "abs", c), made.one(op, "abs", d))
    c, d = made.two(op, "div", c, size), made.two(op, "div", d, size)
    squares = made.two(op, "add", made.two(op, "mul", c, c), made.two(op, "mul", d, d))
    below = made.two(op, "mul", squares, size)
    if b is None:
        real, imaginary = made.two(op, "mul", c, a), made.one(op, "neg", made.two(op, "mul", d, a))
    else:
        real = made.two(op, "add", made.two(op, "mul", a, c), made.two(op, "mul", b, d))
        imaginary = made.two(op, "sub", made.two(op, "mul", b, c), made.two(op, "mul", a, d))
    return made.two(op, "div", real, below), made.two(op, "div", imaginary, below)


def _matmul(made: _Pass, op: Op) -> Pair:
    """The matrix product: four real ones, or two if one side is real."""
    value = op.outputs[0]
    dtype = REAL.get(value.spec.dtype, value.spec.dtype)

    def times(one: Argument, other: Argument) -> Ref:
        """A real matrix product with a quarter of the operations."""
        found = made.emit(op, op.target, [one, other], value.spec.shape, dtype)
        made.ops[-1] = replace(made.ops[-1], flops=op.flops // 4)
        return found

    (a, b), (c, d) = (_operand(made, op, item) for item in op.args[:2])
    if b is None or d is None:
        return (times(a, c), times(a, d)) if b is None else (times(a, c), times(b, c))
    return made.two(op, "sub", times(a, c), times(b, d)), made.two(op, "add", times(a, d), times(b, c))


def _exp(made: _Pass, op: Op) -> Pair:
    """The exponential: exp(real part) at the angle of the imaginary part."""
    real, imaginary = made.parts(op, op.args[0])
    return _polar_of(made, op, made.one(op, "exp", real), imaginary)


def _polar_of(made: _Pass, op: Op, size: Argument, angle: Argument) -> Pair:
    """(size * cos(angle), size * sin(angle))."""
    assert isinstance(angle, Ref)
    return made.two(op, "mul", size, made.one(op, "cos", angle)), made.two(op, "mul", size, made.one(op, "sin", angle))


def _power(made: _Pass, op: Op) -> Pair | None:
    return _product(made, op, op.args[0], op.args[0]) if op.kind == "square" or op.args[1] == 2 else None


def _where(made: _Pass, op: Op) -> Pair | None:
    """The choice of both parts by one mask; None unless both sides are complex."""
    mask, *sides = op.args
    if not all(made.is_complex(item) for item in sides) or len(sides) != 2:
        return None
    found = []
    for one, other in zip(*(made.parts(op, item) for item in sides), strict=True):
        shape = op.outputs[0].spec.shape
        found.append(made.emit(op, "aten.where.self", [mask, one, other], shape, made.spec(one).dtype))
    return found[0], found[1]


def _copy(made: _Pass, op: Op) -> Ref | Pair | None:
    """A conversion between complex types, or from real numbers; that to real numbers drops a part, with a warning."""
    value, source = op.outputs[0], op.args[0]
    if value.spec.dtype not in REAL or not isinstance(source, Ref):
        return None
    dtype = REAL[value.spec.dtype]
    parts = made.parts(op, source) if made.is_complex(source) else (source, None)
    real, imaginary = (
        made.emit(op, "aten.to.dtype", [part, dtype], value.spec.shape, dtype) if part is not None else None
        for part in parts
    )
    assert real is not None
    return real, imaginary or made.two(op, "mul", real, 0.0)


def _conjugate(made: _Pass, op: Op) -> Pair:
    """The conjugate: the imaginary part negated."""
    real, imaginary = made.parts(op, op.args[0])
    return real, made.one(op, "neg", imaginary)


def _given(item: Argument) -> Ref:
    """The argument, which must be a reference."""
    assert isinstance(item, Ref)
    return item


def _stft(made: _Pass, op: Op) -> Pair | None:
    """A short-time transform as two products of overlapping frames with tables of cosines and sines.

    The window is part of the tables: they are made of it alone, once for all calls. None for long or bare frames.
    """
    signal, size, hop, length, window, normalized, onesided, *_ = [*op.args, *([None] * 8)][:8]
    hop, is_half = hop or (int(size) // 4 if isinstance(size, int) else 0), onesided is not False
    if not (isinstance(signal, Ref) and isinstance(window, Ref) and isinstance(size, int) and isinstance(hop, int)):
        return None
    if made.is_complex(signal) or made.is_complex(window) or op.kwargs or size > made.longest_transform:
        return None
    width = length if isinstance(length, int) else size
    dtype, shape, first = made.spec(signal).dtype, made.spec(signal).shape, (size - width) // 2
    count, bins = 1 + (shape[-1] - size) // hop, size // 2 + 1 if is_half else size
    axis = len(shape) - 1
    part = made.emit(op, "aten.slice.Tensor", [signal, axis, first, shape[-1]], (*shape[:-1], shape[-1] - first), dtype)
    frames = made.emit(op, "aten.unfold.default", [part, axis, width, hop], (*shape[:-1], count, width), dtype)
    own = made.emit(op, "aten.view.default", [window, [width, 1]], (width, 1), made.spec(window).dtype)

    def numbers(end: int, target: list[int]) -> Ref:
        """The numbers from 0 to below `end`, in the target shape."""
        found = made.emit(op, "aten.arange.default", [end], (end,), "int64")
        return made.emit(op, "aten.view.default", [found, list(target)], tuple(target), "int64")

    place = made.emit(op, "aten.add.Tensor", [numbers(width, [width, 1]), first], (width, 1), "int64")
    turns = made.emit(op, "aten.mul.Tensor", [place, numbers(bins, [1, bins])], (width, bins), "int64")
    turns = made.emit(op, "aten.remainder.Scalar", [turns, size], (width, bins), "int64")
    halves = made.emit(op, "aten.mul.Tensor", [turns, 2], (width, bins), "int64")
    halves = made.emit(op, "aten.remainder.Scalar", [halves, size], (width, bins), "int64")
    is_whole = made.emit(op, "aten.eq.Scalar", [halves, 0], (width, bins), "bool")  # a sine there is 0, not nearly
    angle = made.emit(op, "aten.to.dtype", [turns, dtype], (width, bins), dtype)
    angle = made.emit(op, "aten.mul.Tensor", [angle, 2 * math.pi / size], (width, bins), dtype)
    results = []
    for kind, sign in (("cos", 1.0), ("sin", -1.0)):
        wave = made.emit(op, f"aten.{kind}.default", [angle], (width, bins), dtype)
        if kind == "sin":
            wave = made.emit(op, "aten.masked_fill.Scalar", [wave, is_whole, 0.0], (width, bins), dtype)
        table = made.emit(op, "aten.mul.Tensor", [wave, own], (width, bins), dtype)
        table = made.emit(
            op, "aten.mul.Tensor", [table, sign * (size**-0.5 if normalized else 1.0)], (width, bins), dtype
        )
        product = made.emit(op, "aten.matmul.default", [frames, table], (*shape[:-1], count, bins), dtype)
        made.ops[-1] = replace(made.ops[-1], flops=2 * width * math.prod((*shape[:-1], count, bins)))
        results.append(
            made.emit(op, "aten.transpose.int", [product, axis, axis + 1], (*shape[:-1], bins, count), dtype)
        )
    return results[0], results[1]


_HANDLERS: dict[str, Callable[[_Pass, Op], Ref | Pair | None]] = {
    "view_as_complex": lambda made, op: made.halves(op, _given(op.args[0])),
    "view_as_real": lambda made, op: made.joined(op, made.parts(op, op.args[0])),
    "complex": lambda made, op: (_given(op.args[0]), _given(op.args[1])),
    "polar": lambda made, op: _polar_of(made, op, op.args[0], op.args[1]),
    "real": lambda made, op: made.parts(op, op.args[0])[0],
    "imag": lambda made, op: made.parts(op, op.args[0])[1],
    "abs": lambda made, op: made.two(op, "hypot", *made.parts(op, op.args[0])),
    "angle": lambda made, op: made.two(op, "atan2", *reversed(made.parts(op, op.args[0]))),
    **dict.fromkeys(("conj", "_conj", "conj_physical", "_conj_physical"), _conjugate),
    **dict.fromkeys(("add", "sub", "rsub"), _add),
    "mul": lambda made, op: _product(made, op, op.args[0], op.args[1]),
    "div": lambda made, op: None if "rounding_mode" in op.kwargs else _quotient(made, op, op.args[0], op.args[1]),
    "reciprocal": lambda made, op: _quotient(made, op, 1.0, op.args[0]),
    **dict.fromkeys(("matmul", "mm", "bmm"), _matmul),
    "exp": _exp,
    **dict.fromkeys(("square", "pow"), _power),
    "where": _where,
    **dict.fromkeys(("_to_copy", "to"), _copy),
    "stft": _stft,
}


def _broadcast(*shapes: Shape) -> Shape:
    """The shape to which these shapes broadcast."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))
