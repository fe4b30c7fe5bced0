"""Gives a trace whose sizes depend on values fixed sizes: a selection keeps all its candidates, with a mask.

`x[mask]` becomes x and the mask, `nonzero` all places and the mask. Work on single rows is done for all candidates.
What joins rows (sums, products along them, writes back) leaves out the candidates that were not chosen.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from foundry.tools.words import words

aten = torch.ops.aten
CHECKS = frozenset({"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range"}) | frozenset(
    {"sym_constrain_range_for_size"}
)
READS = frozenset({"item", "_local_scalar_dense"})
# Operators that compute each row apart, where the dimensions that they join have fixed sizes.
ROWWISE = frozenset(
    words(
        "view reshape _unsafe_view expand unsqueeze squeeze transpose permute t unflatten flatten split chunk "
        "split_with_sizes unbind select slice cat stack clone contiguous detach alias to _to_copy movedim expand_as "
        "view_as type_as lift_fresh_copy copy zeros ones full empty new_zeros new_ones new_full new_empty zeros_like "
        "ones_like full_like empty_like linear matmul mm bmm addmm baddbmm einsum softmax log_softmax _softmax "
        "_log_softmax layer_norm rms_norm sum mean amax amin max min any all prod topk argmax argmin index_select "
        "embedding one_hot gather index cumsum sort norm linalg_vector_norm logsumexp nll_loss_nd cross_entropy_loss"
    )
)
# Operators that mix the elements along their dimension (by its position in the arguments) and keep the dimension.
MIXING = {"softmax": 1, "log_softmax": 1, "_softmax": 1, "_log_softmax": 1, "cumsum": 1, "sort": 1, "gather": 1} | {
    "topk": 2,
    "index_select": 1,
    "split": 2,
    "chunk": 2,
    "unbind": 1,
    "cat": 1,
    "select": 1,
    "slice": 1,
}
# Neutral elements of those of them that can leave rows out.
KEPT_NEUTRAL: dict[str, float] = {"softmax": -math.inf, "_softmax": -math.inf, "cumsum": 0} | {
    "log_softmax": -math.inf,
    "_log_softmax": -math.inf,
}
NEUTRAL: dict[str, float | bool] = {"sum": 0, "mean": 0, "any": False, "all": True, "prod": 1, "count_nonzero": 0} | {
    "amax": -math.inf,
    "max": -math.inf,
    "logsumexp": -math.inf,
    "amin": math.inf,
    "min": math.inf,
}


class CannotMask(Exception):
    """A trace has no form with fixed sizes; the message says which operator prevents it."""


@dataclass(frozen=True)
class RowChoice:
    """The candidates of one selection: `mask`, over `shape`, says which of them are chosen."""

    mask: fx.Node
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of candidates."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Places:
    """The places of a part's candidates: their coordinates along `axis`, or along all axes as columns if None."""

    part: RowChoice
    axis: int | None = None


@dataclass(frozen=True)
class KnownPlace:
    """An integer tensor whose elements are known: the place of one candidate."""

    values: tuple[int, ...]
    has_dimension: bool


@dataclass
class Masker:
    """Walks a trace and writes it again with fixed sizes."""

    iterated: Collection[str]  # sizes of selections whose items a loop took one by one
    graph: fx.Graph = field(default_factory=fx.Graph)
    mode: FakeTensorMode = field(default_factory=FakeTensorMode)
    env: dict[fx.Node, Any] = field(default_factory=dict)
    parts: dict[Any, RowChoice] = field(default_factory=dict)  # selections by the expression of their size
    counts: dict[RowChoice, fx.Node] = field(default_factory=dict)
    made: dict[Any, fx.Node] = field(default_factory=dict)  # calls by their arguments: none is made twice
    source: fx.Node | None = None  # the node that is rewritten

    # ------------------------------------------------ writing

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new node, with the shape of its result and the line of the node that is rewritten."""
        args, kwargs = fx.node.map_aggregate((args, kwargs), self._plain)
        if target in (aten.reshape.default, aten.expand.default) and list(args[0].meta["val"].shape) == list(args[1]):
            return args[0]  # type: ignore[no-any-return]
        key = (target, _frozen(args), _frozen(kwargs))
        if key in self.made:
            return self.made[key]
        name = getattr(target, "_schema", None)
        name = name.name.removeprefix("aten::") if name is not None else target.__name__
        node = self.graph.create_node("call_function", target, tuple(args), dict(kwargs), name=name)
        values = fx.node.map_arg((args, kwargs), lambda item: item.meta["val"])
        with self.mode:
            node.meta["val"] = target(*values[0], **values[1])
        if self.source is not None:
            node.meta |= {
                place: self.source.meta[place]
                for place in ("stack_trace", "nn_module_stack")
                if place in self.source.meta
            }
        self.made[key] = node
        return node

    def _plain(self, item: Any) -> Any:
        """A node for places and known places among arguments."""
        if isinstance(item, Places):
            return self.coordinates(item)
        if isinstance(item, KnownPlace):
            return self.constant(item)
        return item

    def leaf(self, node: fx.Node, value: Any) -> None:
        """A placeholder or constant of the trace as it is."""
        copy = self.graph.node_copy(node, lambda item: item)
        copy.meta = dict(node.meta)
        if isinstance(value, torch.Tensor):
            with self.mode:
                copy.meta["val"] = torch.empty_strided(
                    tuple(int(size) for size in value.shape),
                    tuple(int(step) for step in value.stride()),
                    dtype=value.dtype,
                    device=value.device,
                )
        self.env[node] = copy

    def coordinates(self, places: Places) -> fx.Node:
        """A tensor of the candidates' places."""
        shape = places.part.shape
        device = places.part.mask.meta["val"].device
        columns = []
        for axis in range(len(shape)) if places.axis is None else [places.axis]:
            line = self.emit(aten.arange.default, shape[axis], dtype=torch.int64, device=device)
            sizes = [size if index == axis else 1 for index, size in enumerate(shape)]
            whole = self.emit(aten.expand.default, self.emit(aten.view.default, line, sizes), list(shape))
            columns.append(self.emit(aten.reshape.default, whole, [places.part.size]))
        return columns[0] if places.axis is not None else self.emit(aten.stack.default, columns, 1)

    def constant(self, known: KnownPlace) -> fx.Node:
        """A tensor of known elements."""
        items = [self.emit(aten.full.default, [], value, dtype=torch.int64) for value in known.values]
        return self.emit(aten.stack.default, items, 0) if known.has_dimension else items[0]

    def flat_mask(self, part: RowChoice) -> fx.Node:
        """The mask over the candidates in one dimension."""
        return part.mask if len(part.shape) == 1 else self.emit(aten.reshape.default, part.mask, [part.size])

    def chosen(self, value: fx.Node, part: RowChoice, dim: int, neutral: float | bool) -> fx.Node:
        """`value` with a neutral element for the candidates along `dim` that were not chosen."""
        tensor = value.meta["val"]
        sizes = [1] * tensor.dim()
        sizes[dim] = part.size
        mask = self.emit(aten.reshape.default, part.mask, sizes)
        if not tensor.dtype.is_floating_point and isinstance(neutral, float) and math.isinf(neutral):
            bounds = torch.iinfo(tensor.dtype)
            neutral = bounds.min if neutral < 0 else bounds.max
        other = self.emit(aten.full.default, [], neutral, dtype=tensor.dtype, device=tensor.device)
        return self.emit(aten.where.self, mask, value, other)

    def count(self, part: RowChoice) -> fx.Node:
        """The number of chosen candidates."""
        if part not in self.counts:
            self.counts[part] = self.emit(aten.sum.default, part.mask)
        return self.counts[part]

    # ------------------------------------------------ sizes

    def extent(self, size: Any) -> int:
        """The number of candidates for a size that depends on values, else the size."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        expression = size.node.expr
        if expression in self.parts:
            return self.parts[expression].size
        unknown = [symbol for symbol in expression.free_symbols if symbol not in self.parts]
        if unknown:
            raise CannotMask("makes a size that no selection has")
        return int(expression.subs({symbol: self.parts[symbol].size for symbol in expression.free_symbols}))

    def ragged(self, node: Any) -> dict[Any, int]:
        """The sizes of a tensor in the trace that depend on values, with their dimensions."""
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor):
            return {}
        sizes: list[Any] = list(value.shape)
        return {size.node.expr: dim for dim, size in enumerate(sizes) if is_unknown(size)}

    def part_of(self, expression: Any) -> RowChoice:
        """The selection behind a size."""
        if expression not in self.parts:
            raise CannotMask("joins rows of which no single selection decides")
        return self.parts[expression]

    # ------------------------------------------------ operators

    def run(self, node: fx.Node) -> None:
        """Rewrites one node."""
        self.source = node
        if node.target is operator.getitem:
            self.env[node] = self.env[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            return  # arithmetic on sizes is worked out where it is used
        kind = node.target._schema.name.removeprefix("aten::")
        if kind in CHECKS or (is_number(node) and kind not in READS):
            return
        rule = RULES.get(kind)
        result = rule(self, node) if rule is not None else None
        self.env[node] = self.plain_call(node, kind) if result is None else result

    def value(self, item: Any) -> Any:
        """An argument of the new graph."""
        if isinstance(item, fx.Node):
            if is_number(item):
                return self.number(item)
            if item not in self.env:
                raise CannotMask(f"reads {item.name}, which has no form with fixed sizes")
            return self.env[item]
        if isinstance(item, tuple | list):
            return [self.value(member) for member in item]
        return item

    def number(self, node: fx.Node) -> Any:
        """A number of the trace: a size as the number of candidates, or what an operator on tensors can read."""
        value, known = node.meta["val"], self.env.get(node)
        if isinstance(known, KnownPlace):
            return known.values[0]
        return self.extent(value) if isinstance(value, torch.SymInt) else value

    def scalar(self, node: Any) -> Any:
        """A number that depends on values as a tensor without dimensions."""
        if not isinstance(node, fx.Node) or not is_number(node):
            return node
        if node in self.env:
            return self._plain(self.env[node])
        name = getattr(node.target, "__name__", "")
        expression = node.meta["val"].node.expr if isinstance(node.meta["val"], torch.SymInt) else None
        if expression in self.parts:
            return self.count(self.parts[expression])
        if name in NUMBERS:
            one, *other = [self.scalar(item) for item in node.args]
            if not isinstance(one, fx.Node):
                one = self.emit(aten.full.default, [], one)
            self.env[node] = self.emit(NUMBERS[name], one, *other)
            return self.env[node]
        raise CannotMask("computes with a number that it read from a tensor")

    def plain_call(self, node: fx.Node, kind: str) -> Any:
        """The same operator on all candidates, where it computes each of them apart."""
        assert isinstance(node.target, torch._ops.OpOverload)
        mine = [self.ragged(item) for item in node.all_input_nodes]
        is_pointwise = torch.Tag.pointwise in node.target.tags
        if not any(mine) and not has_unknown(node.meta.get("val")):
            args, kwargs = self._arguments(node, self.scalar if is_pointwise else self.value)
            return self.results(self.emit(node.target, *args, **kwargs))
        if kind not in ROWWISE and not is_pointwise:
            raise CannotMask(f"calls {kind} on chosen rows")
        results = node.meta["val"] if isinstance(node.meta["val"], tuple | list) else [node.meta["val"]]
        kept = {size.node.expr for item in results for size in _sizes(item) if is_unknown(size)}
        gone = {expression for sizes in mine for expression in sizes} - kept
        gone = {item for item in gone if not any(self.parts.get(item) == self.parts.get(other) for other in kept)}
        if gone:
            return self.joined(node, kind, gone)
        args, kwargs = self._arguments(node, self.scalar if is_pointwise else self.value)
        if kind in MIXING:
            self._leave_out(node, kind, args)
        found = self.emit(node.target, *args, **kwargs)
        self._check_shapes(node, found)
        return self.results(found)

    def results(self, found: fx.Node) -> fx.Node | list[fx.Node]:
        """The result of an operator, or its results if there are several."""
        if not isinstance(found.meta["val"], tuple | list):
            return found
        return [self.emit(operator.getitem, found, index) for index in range(len(found.meta["val"]))]

    def _arguments(self, node: fx.Node, read: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        """(arguments, keyword arguments) of a node in the new trace; `read` gives known numbers."""

        def convert(item: Any) -> Any:
            """The argument in the new trace, also within lists: a known number, else the new value."""
            if isinstance(item, tuple | list):
                return [convert(member) for member in item]
            number = read(item) if isinstance(item, fx.Node) and is_number(item) else None
            return self.value(item) if number is None else number

        return [convert(item) for item in node.args], {key: convert(item) for key, item in node.kwargs.items()}

    def _leave_out(self, node: fx.Node, kind: str, args: list[Any]) -> None:
        """Gives the candidates that were not chosen a neutral element where an operator mixes rows. Raises CannotMask
        if it has none."""
        source = node.args[0][0] if isinstance(node.args[0], tuple | list) else node.args[0]
        assert isinstance(source, fx.Node)
        given = node.args[MIXING[kind]] if len(node.args) > MIXING[kind] else node.kwargs.get("dim", 0)
        rank = source.meta["val"].dim()
        for expression, dim in self.ragged(source).items():
            if not isinstance(given, int) or given % max(rank, 1) != dim:
                continue
            if kind not in KEPT_NEUTRAL:
                raise CannotMask(f"calls {kind} along rows that values choose")
            args[0] = self.chosen(self._plain(args[0]), self.part_of(expression), dim, KEPT_NEUTRAL[kind])

    def _check_shapes(self, node: fx.Node, found: fx.Node) -> None:
        """Raises CannotMask if the rewritten operator gives another shape than the trace says."""
        wanted, have = node.meta["val"], found.meta["val"]
        for one, other in zip(
            *([item] if isinstance(item, torch.Tensor) else item for item in (wanted, have)), strict=True
        ):
            if isinstance(one, torch.Tensor) and tuple(self.extent(size) for size in one.shape) != tuple(other.shape):
                raise CannotMask(f"makes a shape of {node.name} that its candidates do not have")

    def joined(self, node: fx.Node, kind: str, gone: Collection[Any]) -> Any:
        """An operator that sums, or otherwise reduces, over chosen rows: the others get its neutral element."""
        if kind in ("matmul", "mm", "bmm", "linear", "einsum", "addmm", "baddbmm"):
            neutral: float | bool = 0
        elif kind in NEUTRAL and len(gone) == 1:
            neutral = NEUTRAL[kind]
        else:
            raise CannotMask(f"calls {kind} over rows that values choose")
        args, kwargs = self._arguments(node, self.value)
        for index, item in enumerate(node.args):
            for expression, dim in self.ragged(item).items():
                if expression in gone:
                    args[index] = self.chosen(self._plain(args[index]), self.part_of(expression), dim, neutral)
        found = self.emit(node.target, *args, **kwargs)
        if kind == "mean":
            (expression,) = gone
            part = self.part_of(expression)
            share = self.emit(aten.div.Tensor, self.emit(aten.full.default, [], float(part.size)), self.count(part))
            found = self.emit(aten.mul.Tensor, found, share)
        return self.results(found)

    def output(self, node: fx.Node) -> None:
        """The results; raises CannotMask if one has a size that depends on values."""
        self.source = node
        returned = node.args[0] if isinstance(node.args[0], tuple | list) else [node.args[0]]
        for item in returned:
            if has_unknown(item.meta.get("val") if isinstance(item, fx.Node) else None):
                raise CannotMask("returns a tensor whose size depends on values")
            if isinstance(item, fx.Node) and is_number(item):
                raise CannotMask("returns a number that it read from a tensor")
        self.graph.output(tuple(self._plain(self.value(item)) for item in returned))


NUMBERS = {"add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor, "truediv": aten.div.Tensor} | {
    "sym_float": aten.clone.default
}


def _frozen(item: Any) -> Any:
    """Arguments in a form that can be a key; numbers of different types differ."""
    if isinstance(item, dict):
        return tuple((key, _frozen(value)) for key, value in sorted(item.items()))
    if isinstance(item, tuple | list):
        return tuple(map(_frozen, item))
    return (type(item), item)


def _sizes(item: Any) -> list[Any]:
    return list(item.shape) if isinstance(item, torch.Tensor) else []


def is_unknown(size: Any) -> bool:
    """True for a size that depends on values."""
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def has_unknown(value: Any) -> bool:
    """True if a tensor, or one of several, has a size that depends on values."""
    items = value if isinstance(value, tuple | list) else [value]
    return any(is_unknown(size) for item in items if isinstance(item, torch.Tensor) for size in item.shape)


def is_number(node: fx.Node) -> bool:
    """True if a node of a trace is a number that depends on values, not a tensor."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


Rule = Callable[[Masker, fx.Node], Any]
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Registers how an operator that chooses rows, or writes to chosen rows, is rewritten. A rule returns None where
    the operator chooses nothing."""

    def register(function: Rule) -> Rule:
        """Registers the function for these kinds and returns it."""
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register
