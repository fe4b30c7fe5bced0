"""Joins the rounds of a loop over keys, each of which works on the rows with its key, into one round for all rows.

Experts are such a loop: round e computes f(x[row], W[e]) for the rows whose key is e. All rows together are f(x[row],
W[key[row]]), so every row is computed once. A product with W[key] is a grouped product, for which there is a kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from foundry.tools.task.values.masked import NEUTRAL, Masker, aten
from foundry.tools.words import words

# Views between a sum over candidates and the place that it is added to.
_TAIL = frozenset({aten.reshape.default, aten.sum.dim_IntList, aten.constant_pad_nd.default})
_INTEGERS = frozenset({torch.int64, torch.int32})
_PRODUCTS = frozenset({aten.matmul.default, aten.mm.default, aten.linear.default, aten.addmm.default})
_ALONG = {kind: 1 for kind in words("softmax log_softmax _softmax _log_softmax cumsum cumprod unbind")} | {
    "split": 2,
    "chunk": 2,
    "split_with_sizes": 2,
    "select": 1,
    "slice": 1,
    "unsqueeze": 1,
    "topk": 2,
}
_WHOLE_ROWS = frozenset(words("layer_norm rms_norm clone contiguous _to_copy to detach alias"))


class Differ(Exception):
    """The rounds do not compute the same, so they stay apart."""


@dataclass(frozen=True)
class Round:
    """One round: `node` is `previous` with the `value` of the rows whose key is `constant` added or put."""

    node: fx.Node
    previous: fx.Node
    key: fx.Node
    constant: int
    value: fx.Node
    choice: fx.Node  # the `where` that leaves out the other rows
    tail: tuple[fx.Node, ...]  # views and sums between the choice and what is added


@dataclass(frozen=True)
class Table:
    """A value of each round, stacked: `node` has the rounds as its first dimension."""

    node: fx.Node


@dataclass(frozen=True)
class ItemRows:
    """A value of which row i is that of the round of item i."""

    node: fx.Node


def join_rounds(graph: fx.Graph) -> fx.Graph:
    """The graph with every chain of equal rounds as one round, where that is possible."""
    for chain in _chains(graph):
        try:
            _Joiner(graph, chain).join()
        except Differ:
            continue
    graph.eliminate_dead_code()
    return graph


# ---------------------------------------------------------------- finding


def _chains(graph: fx.Graph) -> list[list[Round]]:
    """Chains of rounds with the same key and different constants, each of which reads the one before."""
    rounds = {found.node: found for node in graph.nodes if (found := _round(node)) is not None}
    following = {found.previous: found for found in rounds.values() if found.previous in rounds}
    chains = []
    for found in rounds.values():
        if found.previous in rounds and rounds[found.previous].key is found.key:
            continue
        chain = [found]
        while chain[-1].node in following and following[chain[-1].node].key is found.key:
            chain.append(following[chain[-1].node])
        constants = [item.constant for item in chain]
        if len(chain) > 1 and sorted(constants) == list(range(min(constants), max(constants) + 1)):
            chains.append(chain)
    return chains


def _round(node: fx.Node) -> Round | None:
    """The round that ends with a node: an addition of chosen rows, or a choice between new rows and old ones."""
    if node.op != "call_function":
        return None
    if node.target is aten.where.self:
        test = _test(node.args[0])
        if test is None or not isinstance(node.args[2], fx.Node):
            return None
        return Round(node, node.args[2], *test, node.args[1], node, ())  # type: ignore[arg-type]
    if node.target is not aten.add.Tensor or not all(isinstance(item, fx.Node) for item in node.args):
        return None
    tail: list[fx.Node] = []
    at = node.args[1]
    while isinstance(at, fx.Node) and at.target in _TAIL:
        tail.append(at)
        at = at.args[0]
    if not isinstance(at, fx.Node) or at.target is not aten.where.self or not _is_zero(at.args[2]):
        return None
    test = _test(at.args[0])
    if test is None:
        return None
    return Round(node, node.args[0], *test, at.args[1], at, tuple(reversed(tail)))  # type: ignore[arg-type]


def _is_zero(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.full.default and node.args[1] in (0, False)


def _test(mask: Any) -> tuple[fx.Node, int] | None:
    """(key, constant) of a mask that is `key == constant`, seen in another shape."""
    while isinstance(mask, fx.Node) and mask.target in (aten.reshape.default, aten.view.default):
        mask = mask.args[0]
    if not isinstance(mask, fx.Node) or mask.target not in (aten.eq.Scalar, aten.eq.Tensor):
        return None
    key, constant = mask.args
    if isinstance(constant, fx.Node) and constant.target is aten.full.default:
        constant = constant.args[1]
    if not isinstance(key, fx.Node) or not isinstance(constant, int) or key.meta["val"].dtype not in _INTEGERS:
        return None
    return key, constant


# ---------------------------------------------------------------- joining


@dataclass
class _Joiner:
    """Writes one round that stands for a chain."""

    graph: fx.Graph
    chain: list[Round]
    known: dict[tuple[fx.Node, ...], Any] = field(default_factory=dict)
    writer: Masker = field(init=False)
    key: fx.Node = field(init=False)  # position of each item's round, over the items

    def join(self) -> None:
        """Replaces the chain. Raises Differ, and leaves the graph as it was, if the rounds differ."""
        last = self.chain[-1]
        self._check_users()
        with self.graph.inserting_before(last.node):
            self.writer = Masker((), graph=self.graph, mode=_mode_of(last.node))
            self.writer.source = last.value
            first = min(item.constant for item in self.chain)
            self.chain.sort(key=lambda item: item.constant)
            items = self.chain[0].key.meta["val"].numel()
            place = self.emit(aten.reshape.default, self.chain[0].key, [items])
            if first:
                place = self.emit(aten.sub.Tensor, place, first)
            self.key = self.emit(aten.clamp.default, place, 0, len(self.chain) - 1)
            inside = self.emit(aten.eq.Tensor, place, self.key)
            value = self.merge([item.value for item in self.chain])
            if isinstance(value, Table):
                value = self.rows(value, 1)
            node = value.node if isinstance(value, ItemRows) else value
            choice = last.choice
            shape = list(choice.args[0].meta["val"].shape)  # type: ignore[union-attr]
            mask = self.emit(aten.reshape.default, inside, shape)
            start = next(item.previous for item in self.chain if item.previous not in {one.node for one in self.chain})
            other = choice.args[2] if last.tail or last.node is not choice else start
            node = self.emit(aten.where.self, mask, node, other)
            for step in last.tail:
                node = self.emit(step.target, node, *step.args[1:], **step.kwargs)
            if last.node is not choice:
                node = self.emit(aten.add.Tensor, start, node)
            if node.meta["val"].shape != last.node.meta["val"].shape:
                raise Differ
        last.node.replace_all_uses_with(node)

    def _check_users(self) -> None:
        """Raises Differ if something else reads the sum between two rounds, or the rounds' ends are of two kinds."""
        last = self.chain[-1]
        ends = {
            (item.node.target, tuple((step.target, str(step.args[1:])) for step in item.tail)) for item in self.chain
        }
        if len(ends) > 1:
            raise Differ
        for item, after in zip(self.chain, self.chain[1:], strict=False):
            others = [user for user in item.node.users if user is not after.node]
            if others and last.node is not last.choice:
                raise Differ

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new node before the end of the chain."""
        return self.writer.emit(target, *args, **kwargs)

    def merge(self, nodes: Sequence[Any]) -> Any:
        """One value for the values of all rounds: a node if they are the same, a Table, or ItemRows."""
        if not isinstance(nodes[0], fx.Node):
            if any(item != nodes[0] for item in nodes) or any(isinstance(item, fx.Node) for item in nodes):
                raise Differ
            return nodes[0]
        key = tuple(nodes)
        if key not in self.known:
            self.known[key] = self._merge(key)
        return self.known[key]

    def _merge(self, nodes: tuple[fx.Node, ...]) -> Any:
        """The one value in place of the rounds' nodes: shared, carried over, stacked, selected, or the same call once.
        Raises Differ."""
        if all(node is nodes[0] for node in nodes):
            return nodes[0]
        if all(node is item.previous for node, item in zip(nodes, self.chain, strict=True)):
            return self._start()
        if len({node.target for node in nodes}) > 1 and nodes[0].op == "call_function":
            raise Differ
        if nodes[0].op in ("placeholder", "get_attr"):
            return self._stacked(nodes)
        test = [_test(node) for node in nodes]
        if all(found == (item.key, item.constant) for found, item in zip(test, self.chain, strict=True)):
            return self._inside(nodes[0])
        taken = self._selected(nodes)
        if taken is not None:
            return taken
        if len({len(node.args) for node in nodes}) > 1 or len({tuple(node.kwargs) for node in nodes}) > 1:
            raise Differ
        args = [self._argument([node.args[index] for node in nodes]) for index in range(len(nodes[0].args))]
        kwargs = {name: self._argument([node.kwargs[name] for node in nodes]) for name in nodes[0].kwargs}
        return self.call(nodes[0], args, kwargs)

    def _argument(self, items: list[Any]) -> Any:
        """The joined argument of all rounds, also within lists. Raises Differ for lists of different lengths."""
        if isinstance(items[0], tuple | list):
            if len({len(item) for item in items}) > 1:
                raise Differ
            return [self._argument([item[index] for item in items]) for index in range(len(items[0]))]
        return self.merge(items)

    def _start(self) -> Any:
        """The rows before any round: no other round writes to a row, so each reads this."""
        start = next(item.previous for item in self.chain if item.previous not in {one.node for one in self.chain})
        if self.chain[0].key.meta["val"].dim() != 1:
            raise Differ
        return ItemRows(start)

    def _stacked(self, nodes: Sequence[fx.Node]) -> Table:
        """Tensors of the rounds, such as parameters of one module each, as one."""
        forms = {(node.meta["val"].shape, node.meta["val"].dtype) for node in nodes}
        if len(forms) > 1:
            raise Differ
        return Table(self.emit(aten.stack.default, list(nodes)))

    def _inside(self, node: fx.Node) -> ItemRows:
        """The rounds' own masks: every item is chosen in its round."""
        shape = list(node.meta["val"].shape)
        if shape[0] != self.key.meta["val"].shape[0]:
            raise Differ
        return ItemRows(self.emit(aten.full.default, shape, True, dtype=torch.bool, device=node.meta["val"].device))

    def _selected(self, nodes: Sequence[fx.Node]) -> Any:
        """W[0], W[1], ... as W."""
        if nodes[0].target is not aten.select.int or any(node.args[0] is not nodes[0].args[0] for node in nodes):
            return None
        if any(node.args[1] != nodes[0].args[1] for node in nodes):
            raise Differ
        source, dim = nodes[0].args[0], nodes[0].args[1]
        assert isinstance(source, fx.Node) and isinstance(dim, int)
        numbers = [node.args[2] for node in nodes]
        if numbers == list(range(source.meta["val"].shape[dim])):
            return Table(source if dim == 0 else self.emit(aten.movedim.int, source, dim, 0))
        return self._stacked(nodes)

    def rows(self, table: Table, rank: int) -> ItemRows:
        """The table's entry for each item, with dimensions of size 1 up to `rank`."""
        found = self.emit(aten.index.Tensor, table.node, [self.key])
        shape = list(found.meta["val"].shape)
        if len(shape) < rank:
            found = self.emit(aten.reshape.default, found, [shape[0], *[1] * (rank - len(shape)), *shape[1:]])
        return ItemRows(found)

    # ------------------------------------------------ operators

    def call(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """An operator on merged arguments."""
        if node.target is operator.getitem:
            return args[0][args[1]]
        assert isinstance(node.target, torch._ops.OpOverload)
        flat = [item for argument in [*args, *kwargs.values()] for item in _leaves(argument)]
        kinds = {type(item) for item in flat if isinstance(item, ItemRows | Table)}
        if node.target in _PRODUCTS and ItemRows in kinds | _items_of(args[0], self) and Table in kinds:
            return self.product(node, args, kwargs)
        if Table in kinds and ItemRows not in kinds and not self._meets_rows(flat):
            return self.on_tables(node, args, kwargs)
        rank = node.meta["val"].dim() if isinstance(node.meta["val"], torch.Tensor) else 0
        if kinds:
            self._check_rows(node, args)
        plain = [_map(item, lambda one: self._plain(one, rank)) for item in args]
        named = {name: _map(item, lambda one: self._plain(one, rank)) for name, item in kwargs.items()}
        found = self.emit(node.target, *plain, **named)
        if not isinstance(found.meta["val"], tuple | list):
            return ItemRows(found) if kinds else found
        parts = self.writer.results(found)
        assert isinstance(parts, list)
        return [ItemRows(item) if kinds else item for item in parts]

    def _meets_rows(self, flat: Sequence[Any]) -> bool:
        """True if a value that is the same in all rounds has the items as its first dimension."""
        items = self.key.meta["val"].shape[0]
        nodes = [item for item in flat if isinstance(item, fx.Node)]
        return any(node.meta["val"].dim() > 0 and node.meta["val"].shape[0] == items for node in nodes)

    def _plain(self, item: Any, rank: int) -> Any:
        """The node that a table or rows of items stand for, a table at this rank; other items as they are."""
        if isinstance(item, Table):
            return self.rows(item, rank).node
        return item.node if isinstance(item, ItemRows) else item

    def _check_rows(self, node: fx.Node, args: Sequence[Any]) -> None:
        """Raises Differ for an operator that does not compute each row of items apart."""
        assert isinstance(node.target, torch._ops.OpOverload)
        kind = node.target._schema.name.removeprefix("aten::")
        if torch.Tag.pointwise in node.target.tags or kind in _WHOLE_ROWS:
            return
        source = args[0]
        if not isinstance(source, ItemRows):
            raise Differ
        rank = source.node.meta["val"].dim()
        if kind in ("reshape", "view", "expand") and isinstance(args[1], list):
            if args[1] and args[1][0] == source.node.meta["val"].shape[0]:
                return
            raise Differ
        if kind in _ALONG:
            dim = args[_ALONG[kind]] if len(args) > _ALONG[kind] else node.kwargs.get("dim", 0)
        elif kind in NEUTRAL and len(args) > 1:
            dim = args[1]
        else:
            raise Differ
        for one in dim if isinstance(dim, list) else [dim]:
            if not isinstance(one, int) or one % rank == 0:
                raise Differ

    def on_tables(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """An operator on tables alone, made once for all rounds. Raises Differ if it is none of the simple ones."""
        target = node.target
        assert isinstance(target, torch._ops.OpOverload)
        kind = target._schema.name.removeprefix("aten::")
        if torch.Tag.pointwise in target.tags or kind in ("clone", "_to_copy", "detach", "alias", "contiguous"):
            tables = [item for item in args if isinstance(item, Table)]
            if len(tables) == len([item for item in args if isinstance(item, Table | fx.Node)]):
                plain = [item.node if isinstance(item, Table) else item for item in args]
                return Table(self.emit(target, *plain, **kwargs))
            raise Differ
        source = args[0]
        if not isinstance(source, Table):
            raise Differ
        rank = source.node.meta["val"].dim() - 1

        def dim(value: Any) -> int:
            return int(value % max(rank, 1)) + 1

        if kind == "t":
            return Table(self.emit(aten.transpose.int, source.node, 1, 2))
        if kind == "transpose":
            return Table(self.emit(target, source.node, dim(args[1]), dim(args[2])))
        if kind == "permute":
            return Table(self.emit(target, source.node, [0, *(dim(item) for item in args[1])]))
        if kind in ("reshape", "view"):
            return Table(self.emit(aten.reshape.default, source.node, [len(self.chain), *args[1]]))
        if kind in ("select", "slice"):
            return Table(self.emit(target, source.node, dim(args[1]), *args[2:]))
        if kind in ("split", "chunk"):
            found = self.emit(target, source.node, args[1], dim(args[2] if len(args) > 2 else 0))
            parts = self.writer.results(found)
            assert isinstance(parts, list)
            return [Table(item) for item in parts]
        raise Differ

    def product(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> ItemRows:
        """A product of the items with a matrix of their round: a grouped product."""
        bias = None
        if node.target is aten.addmm.default:
            bias, *args = args
            if kwargs:
                raise Differ
        rows, matrix = args[:2]
        if node.target is aten.linear.default:
            bias = args[2] if len(args) > 2 else None
        rows = rows.node if isinstance(rows, ItemRows) else rows
        if not isinstance(matrix, Table) or not isinstance(rows, fx.Node) or matrix.node.meta["val"].dim() != 3:
            raise Differ
        table = matrix.node
        if node.target is aten.linear.default:
            table = self.emit(aten.transpose.int, table, 1, 2)
        if rows.meta["val"].dim() != 2:
            raise Differ
        chosen = self.emit(aten.index.Tensor, table, [self.key])
        found = self.emit(aten.bmm.default, self.emit(aten.unsqueeze.default, rows, 1), chosen)
        found = self.emit(aten.squeeze.dim, found, 1)
        if bias is not None:
            found = self.emit(aten.add.Tensor, found, self._plain(bias, 2))
        return ItemRows(found)


def _mode_of(node: fx.Node) -> Any:
    return node.meta["val"].fake_mode


def _leaves(argument: Any) -> list[Any]:
    return [leaf for item in argument for leaf in _leaves(item)] if isinstance(argument, list) else [argument]


def _map(argument: Any, change: Any) -> Any:
    return [_map(item, change) for item in argument] if isinstance(argument, list) else change(argument)


def _items_of(argument: Any, joiner: _Joiner) -> set[type]:
    """{ItemRows} for a value with a row for each item that is the same in all rounds: x[row] for instance."""
    is_rows = isinstance(argument, fx.Node) and joiner._meets_rows([argument])
    return {ItemRows} if is_rows else set()
