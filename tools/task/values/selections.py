"""Operators that choose rows by values, read chosen rows or write to them, with fixed sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from torch import fx

from foundry.tools.task.values.masked import (
    CannotMask,
    KnownPlace,
    Masker,
    Places,
    RowChoice,
    aten,
    is_number,
    is_unknown,
    rule,
)


def _is_mask(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.meta["val"].dtype in (torch.bool, torch.uint8)


def _selection(masker: Masker, mask: fx.Node, size: Any) -> RowChoice:
    """The part of a mask of the trace, remembered by its size."""
    if masker.ragged(mask):
        raise CannotMask("chooses among rows that were chosen before")
    source = masker._plain(masker.env[mask])
    if source.meta["val"].dtype != torch.bool:
        source = masker.emit(aten.ne.Scalar, source, 0)
    source = _compared_class(masker, source)
    return _remember(masker, size, RowChoice(source, tuple(source.meta["val"].shape)))


def _compared_class(masker: Masker, mask: fx.Node) -> fx.Node:
    """`key == e` for a mask that is class e of a one-hot table, so that rounds over classes look alike."""
    at: Any = mask.args[0] if mask.target is aten.ne.Scalar and mask.args[1] == 0 else mask
    at = _without_casts(at)
    if at.target is not aten.select.int:
        return mask
    table, dim, place = at.args
    table, order = _without_casts(table), list(range(table.meta["val"].dim()))
    if table.target is aten.permute.default:
        order = [axis % len(order) for axis in table.args[1]]
        table = _without_casts(table.args[0])
    elif table.target is aten.transpose.int:
        one, other = (axis % len(order) for axis in table.args[1:])
        order[one], order[other] = order[other], order[one]
        table = _without_casts(table.args[0])
    if table.target is not aten.one_hot.default or order[dim] != len(order) - 1:
        return mask
    key, rest = table.args[0], [axis for axis in order if axis != len(order) - 1]
    if rest != sorted(rest):
        key = masker.emit(aten.permute.default, key, rest)
    return masker.emit(aten.eq.Scalar, key, place)


def _without_casts(node: Any) -> Any:
    """The node below casts and copies."""
    while node.op == "call_function" and node.target in (aten._to_copy.default, aten.to.dtype, aten.clone.default):
        node = node.args[0]
    return node


def _remember(masker: Masker, size: Any, part: RowChoice) -> RowChoice:
    """The selection that has this size; remembers `part` if there is none. Raises CannotMask if it is another one."""
    known = masker.parts.setdefault(size.node.expr, part)
    if known != part:
        raise CannotMask("takes two selections to have the same size")
    return known


@rule("nonzero", "where", "nonzero_numpy", "argwhere")
def _nonzero(masker: Masker, node: fx.Node) -> Any:
    """The places of chosen elements."""
    if (
        node.target is not aten.where.default
        and "nonzero" not in str(node.target)
        and "argwhere" not in str(node.target)
    ):
        return None
    mask = node.args[0]
    assert isinstance(mask, fx.Node)
    value = node.meta["val"]
    size = (value[0] if isinstance(value, tuple | list) else value).shape[0]
    if not is_unknown(size):
        return None
    part = _selection(masker, mask, size)
    if not isinstance(value, tuple | list):
        return Places(part)
    for item in value[1:]:
        _remember(masker, item.shape[0], part)
    return [Places(part, axis) for axis in range(len(part.shape))]


@rule("select", "squeeze", "unbind", "split", "reshape", "view", "unsqueeze")
def _of_places(masker: Masker, node: fx.Node) -> Any:
    """Columns of places, and single places that a loop took."""
    source = masker.env.get(node.args[0]) if isinstance(node.args[0], fx.Node) else None
    kind = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]
    numbers = [item for item in node.args[1:] if isinstance(item, int)]
    if kind == "select" and isinstance(node.args[2], fx.Node):
        return _at_number(masker, node)
    if isinstance(source, KnownPlace):
        if kind == "select":
            return KnownPlace((source.values[numbers[1]],), False)
        if kind == "unbind":
            return [KnownPlace((item,), False) for item in source.values]
        if kind in ("squeeze", "view", "reshape") and len(source.values) == 1:
            return KnownPlace(source.values, node.meta["val"].dim() == 1) if node.meta["val"].dim() < 2 else None
        return None
    if isinstance(source, Places):
        if kind == "select" and numbers[0] == 0:
            return _taken(masker, node, source, numbers[1])
        if kind == "select" and source.axis is None:
            return Places(source.part, numbers[1])
        if kind == "unbind" and source.axis is None and numbers == [1]:
            return [Places(source.part, axis) for axis in range(len(source.part.shape))]
        if kind == "squeeze" and source.axis is None and len(source.part.shape) == 1:
            return Places(source.part, 0)
        return None
    if kind == "select" and isinstance(node.args[0], fx.Node) and numbers[0] in masker.ragged(node.args[0]).values():
        return _chosen_item(masker, node, numbers[0], numbers[1])
    return None


def _at_number(masker: Masker, node: fx.Node) -> Any:
    """x[n] with a number that was read from a tensor."""
    source, dim, place = node.args
    assert isinstance(source, fx.Node) and isinstance(dim, int)
    table, index = masker._plain(masker.value(source)), masker.env.get(place)  # type: ignore[arg-type]
    if isinstance(index, KnownPlace):
        return masker.emit(aten.select.int, table, dim, index.values[0])
    return masker.emit(aten.index.Tensor, table, [*[None] * dim, masker.scalar(place)])


def _taken(masker: Masker, node: fx.Node, places: Places, index: int) -> Any:
    """The place of one candidate in a loop over all of them."""
    assert isinstance(node.args[0], fx.Node)
    if str(node.args[0].meta["val"].shape[0].node.expr) not in masker.iterated:
        return None
    found = []
    for size in reversed(places.part.shape):
        index, rest = divmod(index, size)
        found.append(rest)
    values = tuple(reversed(found))
    return KnownPlace(values, True) if places.axis is None else KnownPlace((values[places.axis],), False)


def _chosen_item(masker: Masker, node: fx.Node, dim: int, index: int) -> Any:
    """One row of those that a loop takes, by its candidate."""
    assert isinstance(node.args[0], fx.Node)
    size = node.args[0].meta["val"].shape[dim]
    if str(size.node.expr) not in masker.iterated:
        raise CannotMask("takes a row by its place among chosen rows")
    return masker.emit(aten.select.int, masker.value(node.args[0]), dim, index)


# ---------------------------------------------------------------- reads


@rule("index", "masked_select")
def _index(masker: Masker, node: fx.Node) -> Any:
    """x[mask], x[row] and x[row, slot]."""
    source, given = node.args[0], node.args[1]
    assert isinstance(source, fx.Node)
    items = list(given) if isinstance(given, tuple | list) else [given]
    masks = [item for item in items if _is_mask(item)]
    table = masker.value(source)
    if masks:
        if len(masks) > 1 or items[0] is not masks[0] or any(item is not None for item in items[1:]):
            raise CannotMask("is indexed by a mask beside other indices")
        part = _selection(masker, cast(fx.Node, masks[0]), node.meta["val"].shape[0])
        rest = list(table.meta["val"].shape[len(part.shape) :])
        return masker.emit(aten.reshape.default, table, [part.size, *rest])
    known = [masker.env.get(item) if isinstance(item, fx.Node) else None for item in items]
    if any(isinstance(item, KnownPlace) for item in known):
        return _at_known(masker, table, items, known)
    if any(isinstance(item, Places) for item in known):
        found = _at_places(masker, table, known)
        if found is not None:
            return found
    if not any(masker.ragged(item) for item in items):
        return None
    indices = [None if item is None else _safe(masker, item) for item in items]
    return masker.emit(aten.index.Tensor, table, indices)


def _at_known(masker: Masker, table: fx.Node, items: list[Any], known: list[Any]) -> Any:
    """The table at known places, a dimension fewer for each."""
    if not all(item is None or isinstance(value, KnownPlace) for item, value in zip(items, known, strict=True)):
        raise CannotMask("is indexed by a loop's item beside other indices")
    dim = 0
    for value in known:
        if value is None:
            dim += 1
            continue
        (place,) = value.values
        if value.has_dimension:
            table = masker.emit(aten.slice.Tensor, table, dim, place, place + 1)
            dim += 1
        else:
            table = masker.emit(aten.select.int, table, dim, place)
    return table


def _at_places(masker: Masker, table: fx.Node, known: list[Any]) -> Any:
    """The table at a part's own places, as a view of it; None if it is another kind of read."""
    places = [item for item in known if item is not None]
    if not all(isinstance(item, Places) and item.axis is not None for item in known) or len(places) != len(known):
        return None
    part = places[0].part
    axes = [item.axis for item in places]
    if any(item.part != part for item in places) or len(set(axes)) < len(axes):
        return None
    if axes != sorted(axes):
        order = sorted(range(len(axes)), key=axes.__getitem__)
        table = masker.emit(aten.permute.default, table, [*order, *range(len(axes), table.meta["val"].dim())])
        axes.sort()
    shape, rest = part.shape, list(table.meta["val"].shape[len(axes) :])
    for dim, axis in enumerate(axes):
        if table.meta["val"].shape[dim] != shape[axis]:
            table = masker.emit(aten.slice.Tensor, table, dim, 0, shape[axis])
    sizes = [size if axis in axes else 1 for axis, size in enumerate(shape)]
    wide = masker.emit(aten.reshape.default, table, [*sizes, *rest])
    wide = masker.emit(aten.expand.default, wide, [*shape, *rest])
    return masker.emit(aten.reshape.default, wide, [part.size, *rest])


def _safe(masker: Masker, item: Any) -> Any:
    """An index whose candidates that were not chosen read element 0."""
    value = masker._plain(masker.value(item))
    for expression, dim in masker.ragged(item).items():
        value = masker.chosen(value, masker.part_of(expression), dim, 0)
    return value


@rule("slice")
def _slice(masker: Masker, node: fx.Node) -> Any:
    """x[start:end] with bounds that were read from tensors: all rows, of which some are chosen."""
    source, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
    assert isinstance(source, fx.Node) and isinstance(dim, int)
    if not _is_read(node.args[2:4]):
        return None
    if dim in masker.ragged(source).values():
        raise CannotMask("slices rows that were chosen before")
    table = masker._plain(masker.value(source))
    part = _between(masker, table, dim, node.args[2:])
    _remember(masker, node.meta["val"].shape[dim], part)
    return table


@rule("slice_scatter")
def _slice_scatter(masker: Masker, node: fx.Node) -> Any:
    """x[start:end] = rows, with bounds that were read from tensors."""
    target, source, dim = node.args[0], node.args[1], node.args[2] if len(node.args) > 2 else 0
    assert isinstance(target, fx.Node) and isinstance(source, fx.Node) and isinstance(dim, int)
    if not _is_read(node.args[3:5]):
        return None
    table, rows = masker._plain(masker.value(target)), masker._plain(masker.value(source))
    part = _between(masker, table, dim, node.args[3:])
    if [masker.parts.get(expression) for expression in masker.ragged(source)] != [part]:
        raise CannotMask("writes rows of one selection to another")
    mask = masker.emit(
        aten.reshape.default, part.mask, [-1 if axis == dim else 1 for axis in range(table.meta["val"].dim())]
    )
    return masker.emit(aten.where.self, mask, rows, table)


def _is_read(bounds: Any) -> bool:
    return any(isinstance(item, fx.Node) and is_number(item) for item in bounds)


def _between(masker: Masker, table: fx.Node, dim: int, given: Any) -> RowChoice:
    """The rows of a slice with the bounds and the step of `given`."""
    start, end, step = [*given, None, None, None][:3]
    if step not in (None, 1):
        raise CannotMask("slices with a step by numbers that it read")
    size = int(table.meta["val"].shape[dim])
    place = masker.emit(aten.arange.default, size, dtype=torch.int64, device=table.meta["val"].device)
    tests: list[fx.Node] = []
    if start not in (None, 0):
        tests.append(_compared(masker, "ge", place, start, size))
    if isinstance(end, fx.Node) or (end is not None and end < size):
        tests.append(_compared(masker, "lt", place, end, size))
    mask = tests[0] if len(tests) == 1 else masker.emit(aten.logical_and.default, *tests)
    return RowChoice(mask, (size,))


def _compared(masker: Masker, test: str, place: fx.Node, bound: Any, size: int) -> fx.Node:
    """place >= bound or place < bound; a negative bound counts from the end."""
    value = masker.scalar(bound)
    if isinstance(value, torch.SymInt):
        raise CannotMask("slices by a number whose origin is not known")
    if not isinstance(value, fx.Node):
        value = value + size if value < 0 else value
        return masker.emit(aten.ge.Scalar if test == "ge" else aten.lt.Scalar, place, value)
    return masker.emit(aten.ge.Tensor if test == "ge" else aten.lt.Tensor, place, value)


@rule("_local_scalar_dense", "item")
def _item(masker: Masker, node: fx.Node) -> Any:
    """A number that was read: the tensor without dimensions that holds it."""
    source = masker.value(node.args[0])
    if isinstance(source, KnownPlace):
        return source
    source = masker._plain(source)
    return masker.emit(aten.reshape.default, source, [])


# ---------------------------------------------------------------- writes


@rule("index_add")
def _index_add(masker: Masker, node: fx.Node) -> Any:
    """Chosen rows added to their places."""
    target, dim, index, source = node.args[:4]
    if not masker.ragged(index):
        return None
    value = _neutral(masker, source)
    alpha = node.kwargs.get("alpha", 1)
    if alpha != 1:
        value = masker.emit(aten.mul.Tensor, value, alpha)
    table = masker._plain(masker.value(target))
    places = masker.env[index]  # type: ignore[index]
    if isinstance(places, Places) and places.axis is not None and dim == 0:
        return masker.emit(aten.add.Tensor, table, _spread(masker, value, places, table))
    return masker.emit(aten.index_add.default, table, dim, _safe(masker, index), value)


def _neutral(masker: Masker, source: Any) -> fx.Node:
    """Rows to add, with zeros for the candidates that were not chosen."""
    value: fx.Node = masker._plain(masker.value(source))
    for expression, dim in masker.ragged(source).items():
        value = masker.chosen(value, masker.part_of(expression), dim, 0)
    return value


def _spread(masker: Masker, value: fx.Node, places: Places, table: fx.Node) -> fx.Node:
    """The sum of the candidates' rows at each place of the table."""
    shape, rest = places.part.shape, list(value.meta["val"].shape[1:])
    if len(shape) > 1:
        value = masker.emit(aten.reshape.default, value, [*shape, *rest])
        others = [axis for axis in range(len(shape)) if axis != places.axis]
        value = masker.emit(aten.sum.dim_IntList, value, others)
    missing = int(table.meta["val"].shape[0]) - shape[places.axis or 0]
    if missing:
        value = masker.emit(aten.constant_pad_nd.default, value, [0, 0] * len(rest) + [0, missing])
    return value


@rule("index_put")
def _index_put(masker: Masker, node: fx.Node) -> Any:
    """out[mask] = rows, out[row] = rows, and the same with +=."""
    target, items, source = node.args[:3]
    accumulate = bool(node.args[3]) if len(node.args) > 3 else False
    assert isinstance(items, tuple | list)
    table = masker._plain(masker.value(target))
    if len(items) == 1 and _is_mask(items[0]):
        if not masker.ragged(source):
            return None
        mask = masker._plain(masker.env[items[0]])  # type: ignore[index]
        part = RowChoice(mask, tuple(mask.meta["val"].shape))
        if any(masker.part_of(expression) != part for expression in masker.ragged(source)):
            raise CannotMask("writes rows of one selection to another")
        return _put(masker, table, part, masker.value(source), accumulate)
    places = [masker.env.get(item) if isinstance(item, fx.Node) else None for item in items]
    if not any(masker.ragged(item) for item in items if item is not None):
        return None
    if not all(isinstance(item, Places) and item.axis is not None for item in places):
        raise CannotMask("writes to rows at places that were computed")
    part = places[0].part  # type: ignore[union-attr]
    axes = [item.axis for item in places]  # type: ignore[union-attr]
    if any(item.part != part for item in places) or axes != list(range(len(part.shape))):  # type: ignore[union-attr]
        if len(axes) == 1 and accumulate and places[0] is not None:
            return masker.emit(aten.add.Tensor, table, _spread(masker, _neutral(masker, source), places[0], table))
        raise CannotMask("writes to rows of which several are the same")
    return _put(masker, table, part, masker.value(source), accumulate)


def _put(masker: Masker, table: fx.Node, part: RowChoice, value: Any, accumulate: bool) -> fx.Node:
    """The table with the chosen rows written, or added."""
    shape = list(table.meta["val"].shape)
    rest = shape[len(part.shape) :]
    if tuple(shape[: len(part.shape)]) != part.shape:
        raise CannotMask("writes to a table of another size than its selection")
    value = masker._plain(value)
    if value.meta["val"].dim() and value.meta["val"].shape[0] == part.size:
        value = masker.emit(aten.reshape.default, value, [*part.shape, *value.meta["val"].shape[1:]])
    if value.meta["val"].dtype != table.meta["val"].dtype:
        value = masker.emit(aten._to_copy.default, value, dtype=table.meta["val"].dtype)
    mask = masker.emit(aten.reshape.default, part.mask, [*part.shape, *[1] * len(rest)])
    if accumulate:
        value = masker.emit(aten.add.Tensor, table, value)
    return masker.emit(aten.where.self, mask, value, table)


# ---------------------------------------------------------------- whole traces


def with_fixed_sizes(graph: fx.Graph, constants: Mapping[str, torch.Tensor], iterated: Collection[str]) -> fx.Graph:
    """The same computation with fixed sizes. Raises CannotMask with the node that prevents it as its argument."""
    masker = Masker(iterated)
    for node in graph.nodes:
        if node.op == "placeholder":
            masker.leaf(node, node.meta.get("val"))
        elif node.op == "get_attr":
            masker.leaf(node, constants.get(str(node.target)))
        elif node.op == "output":
            masker.output(node)
        elif node.op == "call_function":
            try:
                masker.run(node)
            except CannotMask as error:
                raise CannotMask(str(error), node) from error
    masker.graph.eliminate_dead_code()
    return masker.graph
