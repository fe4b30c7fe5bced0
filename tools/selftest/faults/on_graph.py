"""Faults on the operator graph, so that the kernel computes another task. Free of torch.

A fault of the graph is in the kernel wherever the compiler fuses the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import Argument, Op, OpGraph, Ref, Value, contiguous_strides
from foundry.tools.selftest.faults.fault import Family, Fault, PlantableFault
from foundry.tools.selftest.faults.original import Original

Change = Callable[[OpGraph], OpGraph]

_AXIS = {"softmax": 1, "log_softmax": 1, "cumsum": 1, "cumprod": 1, "logcumsumexp": 1, "flip": 1}  # argument index
_REDUCING_AXIS = {"mean": 1, "sum": 1, "amax": 1, "amin": 1, "var": 1, "logsumexp": 1, "norm": 2}  # argument index
# Operators whose omission would change no element or only the order: transposes, copies, casts.
_KEPT = frozenset({"transpose", "permute", "view", "reshape", "contiguous", "clone", "to", "expand", "triu", "tril"})
_ELEMENTWISE = frozenset(
    {"relu", "gelu", "silu", "tanh", "sigmoid", "exp", "sqrt", "rsqrt", "square", "abs", "softplus"}
)
_SCALED = frozenset({"mul", "div", "add", "sub"})
_TRIANGLES = frozenset({"triu", "tril"})


def faults(original: Original) -> Iterator[PlantableFault]:
    """Every fault that fits somewhere into the task's operator graph."""
    for op in original.graphs[0].ops:
        for family, what, change in _changes(original.graphs[0], op):
            yield PlantableFault(Fault(family, what, f"operator {op.name}"), _maker(original, change))


def _maker(original: Original, change: Change) -> Callable[[], str]:
    """A function that makes the candidate's text after the change of each of its graphs."""
    return lambda: original.with_graphs([change(graph) for graph in original.graphs])


def _changes(graph: OpGraph, op: Op) -> Iterator[tuple[Family, str, Change]]:
    """(family, description, change of the graph) for each fault at one operator."""
    source = _replaceable(graph, op)
    if source is not None and op.name not in graph.mutations.values():
        yield "dropped operator", f"{op.kind} is left out: its first operand is passed on", _dropping(op)
    yield from _axes(op)
    yield from _scalars(op)
    if op.kind in _TRIANGLES:
        offset = op.args[1] if len(op.args) > 1 and isinstance(op.args[1], int) else 0
        for shifted in (offset - 1, offset + 1):
            what = f"the mask's diagonal is {shifted} where the task has {offset}"
            yield "off by one", what, _with_argument(op, 1, shifted)
    follower = _exchangeable(graph, op)
    if follower is not None:
        what = f"{follower.kind} is applied before {op.kind} instead of after it"
        yield "swapped order", what, _exchanging(op, follower)


# ---------------------------------------------------------------- dropped


def _replaceable(graph: OpGraph, op: Op) -> Value | None:
    """The operand that can stand for the result: same shape and dtype, computed or an input, not a parameter; else
    None."""
    if op.kind in _KEPT or len(op.outputs) != 1 or not op.args or not isinstance(op.args[0], Ref):
        return None
    value = graph.values[op.args[0].ref]
    spec = op.outputs[0].spec
    same = value.spec.shape == spec.shape and value.spec.dtype == spec.dtype and value.spec.strides == spec.strides
    is_neutral = op.kind in ("mul", "div") and op.args[1:2] in ([1], [1.0])
    return value if same and value.role in ("input", "op") and not is_neutral else None


def _dropping(op: Op) -> Change:
    """A change that leaves an operator out and passes its first operand on."""

    def change(graph: OpGraph) -> OpGraph:
        """The graph without the operator; its readers get its first operand."""
        place = _position(graph, op.name)
        first = graph.ops[place].args[0]
        ops = [_rewire(other, op.name, first) for other in graph.ops if other.name != op.name]
        outputs = [first if item == Ref(op.name) else item for item in graph.outputs]
        return replace(graph, ops=ops, outputs=outputs)

    return change


def _rewire(op: Op, name: str, value: Argument) -> Op:
    """The operator with `value` wherever it read the value `name`."""

    def visit(item: Argument) -> Argument:
        """The argument with references to `name` replaced by `value`, also in lists."""
        if isinstance(item, list):
            return [visit(member) for member in item]
        return value if item == Ref(name) else item

    return replace(
        op, args=[visit(item) for item in op.args], kwargs={key: visit(item) for key, item in op.kwargs.items()}
    )


def _position(graph: OpGraph, name: str) -> int:
    """Index of an operator in the graph by name; raises CannotLower if it is absent."""
    for at, op in enumerate(graph.ops):
        if op.name == name:
            return at
    raise CannotLower(f"another captured shape has no operator {name}")


# ---------------------------------------------------------------- axis and numbers


def _with_argument(op: Op, index: int, value: Argument) -> Change:
    """A change that sets one positional argument of an operator."""

    def change(graph: OpGraph) -> OpGraph:
        """The graph with argument number `index` of the operator replaced by `value`."""
        place = _position(graph, op.name)
        old = graph.ops[place]
        args = [*old.args, *[0] * (index + 1 - len(old.args))]
        args[index] = value
        return replace(graph, ops=[*graph.ops[:place], replace(old, args=args), *graph.ops[place + 1 :]])

    return change


def _axes(op: Op) -> Iterator[tuple[Family, str, Change]]:
    """Yields (family, description, change) for faults that move an operator along another dimension."""
    shape = op.outputs[0].spec.shape
    if op.kind in _AXIS and len(op.args) > _AXIS[op.kind] and isinstance(op.args[_AXIS[op.kind]], int):
        index = _AXIS[op.kind]
        old = op.args[index]
        assert isinstance(old, int)
        for axis in range(len(shape)):
            if axis != old % len(shape) and shape[axis] > 1:
                what = f"{op.kind} goes along dimension {axis} instead of {old % len(shape)}"
                yield "wrong axis", what, _with_argument(op, index, axis)
    if op.kind == "group_norm" and isinstance(op.args[1], int) and op.args[1] % 2 == 0:
        what = f"{op.args[1] // 2} groups are normalised instead of {op.args[1]}"
        yield "wrong axis", what, _with_argument(op, 1, op.args[1] // 2)
    if (
        op.kind in _REDUCING_AXIS
        and len(op.args) > _REDUCING_AXIS[op.kind] + 1
        and op.args[_REDUCING_AXIS[op.kind] + 1]
    ):
        yield from _reducing_axes(op, _REDUCING_AXIS[op.kind], len(shape))


def _reducing_axes(op: Op, index: int, rank: int) -> Iterator[tuple[Family, str, Change]]:
    """Faults that reduce along another dimension and broadcast the result as before. Only for reductions that keep
    their dims."""
    dims = op.args[index]
    if not (isinstance(dims, list) and len(dims) == 1 and isinstance(dims[0], int)):
        return
    old = dims[0] % rank
    for axis in range(rank):
        if axis != old:
            what = f"{op.kind} goes along dimension {axis} instead of {old}"
            yield "wrong axis", what, _reducing_along(op, index, axis)


def _reducing_along(op: Op, index: int, axis: int) -> Change:
    """A change that reduces along `axis` and expands the result to the old shape."""
    changed = _with_argument(op, index, [axis])

    def change(graph: OpGraph) -> OpGraph:
        """The changed graph with the reduction's result, and values computed from it, in the shape for this axis."""
        given = changed(graph)
        place = _position(given, op.name)
        first = given.ops[place].args[0]
        assert isinstance(first, Ref)
        whole = given.values[first.ref].spec.shape
        old = given.ops[place].outputs[0].spec.shape
        new = tuple(1 if at == axis else size for at, size in enumerate(whole))
        touched: set[str] = set()
        ops: list[Op] = []
        for item in given.ops:
            follows = item.name == op.name or (item.outputs[0].spec.shape == old and touched & set(item.reads))
            if follows:
                touched |= {value.name for value in item.outputs}
                item = replace(item, outputs=[_with_shape(value, new) for value in item.outputs])
            ops.append(item)
        return replace(given, ops=ops)

    return change


def _with_shape(value: Value, shape: tuple[int, ...]) -> Value:
    """The value with another shape, contiguous."""
    return replace(value, spec=replace(value.spec, shape=shape, strides=contiguous_strides(shape)))


def _scalars(op: Op) -> Iterator[tuple[Family, str, Change]]:
    """Faults that change a number which is multiplied or added; epsilons and axes have their own faults."""
    if op.kind not in _SCALED or not op.outputs[0].spec.dtype.startswith(("float", "bfloat")):
        return
    for index, item in enumerate(op.args[1:2], 1):
        if isinstance(item, int | float) and not isinstance(item, bool) and abs(item) >= 1e-2:
            what = f"{op.kind} with {item * 1.01:.6g} instead of {item:.6g}"
            yield "wrong constant", what, _with_argument(op, index, item * 1.01)


# ---------------------------------------------------------------- order


def _exchangeable(graph: OpGraph, op: Op) -> Op | None:
    """The only user of `op`, if swapping the two computes another function; else None."""
    users = graph.users.get(op.name, [])
    if len(users) != 1 or Ref(op.name) in graph.outputs or _replaceable(graph, op) is None:
        return None
    follower = users[0]
    if _replaceable(graph, follower) is None or follower.args[0] != Ref(op.name) or follower.reads.count(op.name) != 1:
        return None
    kinds = {op.kind, follower.kind}
    if not (kinds <= _ELEMENTWISE | _SCALED) or follower.args[1:2] == [Ref(op.name)]:
        return None
    scaling = {"mul", "div"}
    is_positive = all(not isinstance(item, int | float) or item > 0 for item in [*op.args[1:2], *follower.args[1:2]])
    commuting = (
        kinds <= scaling or kinds <= {"add", "sub"} or (kinds & {"relu", "abs"} and kinds & scaling and is_positive)
    )
    return None if commuting or (len(kinds) == 1) else follower


def _exchanging(op: Op, follower: Op) -> Change:
    """A change that turns op(x) then follower into follower(x) then op, under the follower's name."""

    def change(graph: OpGraph) -> OpGraph:
        """The graph with two operators in a row exchanged."""
        first, second = graph.ops[_position(graph, op.name)], graph.ops[_position(graph, follower.name)]
        early = replace(second, args=[first.args[0], *second.args[1:]], outputs=first.outputs)
        late = replace(first, args=[Ref(first.name), *first.args[1:]], outputs=second.outputs)
        order = [item for item in graph.ops if item.name not in (op.name, follower.name)]
        place = _position(graph, follower.name) - 1
        return replace(graph, ops=[*order[:place], early, late, *order[place:]])

    return change
