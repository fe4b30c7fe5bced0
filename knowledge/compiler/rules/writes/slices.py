"""Lowers writes to slices: `x[i] = value` becomes a copy of x with one region replaced.

A loop that fills a tensor slice by slice is a chain of such writes. If no operator reads what is still to be
written, the chain shares one buffer, and each member writes its slice there and copies nothing.
"""

from __future__ import annotations

from foundry.knowledge.compiler.ir.kernels import Load, View
from foundry.knowledge.compiler.rules.builder import Builder, Slices, Tensor, argument, integer, rule
from foundry.knowledge.compiler.rules.shape import clip, new_buffer, store_part
from foundry.knowledge.compiler.rules.writes.in_place import enclosing_memory, own_memory
from foundry.knowledge.opgraph import Op, OpGraph, Ref, contiguous_strides


@rule("slice_scatter", "select_scatter")
def _scatter_slice(builder: Builder, op: Op) -> None:
    """Lowers slice_scatter and select_scatter: writes the part into a copy of the source, or where an earlier one
    wrote."""
    source, part = builder.tensor_at(op, 0, "self"), builder.tensor_at(op, 1, "src")
    axis = source.axis(integer(op, 2, "dim", 0))
    size = source.shape[axis]
    step = 1
    if op.kind == "select_scatter":
        start = integer(op, 3, "index") % size
        length = 1
        part = builder.reshape(part, (*source.shape[:axis], 1, *source.shape[axis + 1 :]), op)
    else:
        start = 0 if argument(op, 3, "start") is None else clip(integer(op, 3, "start"), size)
        step = integer(op, 5, "step", 1)
        length = part.shape[axis]
    part = builder.expand(part, (*source.shape[:axis], length, *source.shape[axis + 1 :]), op)
    if length == size:  # the source is overwritten completely
        builder.bind(op, Tensor(source.shape, part.expr))
        return
    whole = enclosing_memory(builder, op, part)
    if whole is not None:
        builder.bind(op, whole)
        return
    indices = frozenset(range(start, start + length * step, step))
    chain = _chain_before(builder, op, axis, indices)
    own = _first_write(builder, op) if chain is None else chain.tensor
    if own is None:
        tensor, target = new_buffer(builder, op)
        store_part(builder, op, target, part=source, view=View(0, contiguous_strides(tensor.shape)), tag="copy")
    else:
        tensor = builder.tensors[op.name] = own
        assert isinstance(tensor.expr, Load)
        target = tensor.expr
    assert isinstance(tensor.expr, Load)
    strides = list(tensor.expr.view.strides)
    offset = tensor.expr.view.offset + start * strides[axis]
    strides[axis] *= step
    store_part(builder, op, target, part, view=View(offset, tuple(strides)), tag=f"from{start}")
    # Last, because if anything above raises, PyTorch makes a new tensor instead.
    builder.slices[op.name] = Slices(tensor, axis, indices | (chain.written if chain else frozenset()))


def _first_write(builder: Builder, op: Op) -> Tensor | None:
    """The module's memory that the first write of a chain may go to; None if there is none."""
    base = builder.tensor(op.args[0]).expr
    own = builder.in_place.get(op.name)
    if own is None or own.encloses or (isinstance(base, Load) and builder.buffers[base.buffer].is_in_place):
        return None
    return own_memory(builder, op)


def _chain_before(builder: Builder, op: Op, axis: int, indices: frozenset[int]) -> Slices | None:
    """The chain that `op` may continue: it writes other indices, and all other readers of the tensor so far read
    slices that are written and stay. None if there is none."""
    base = op.args[0]
    graph = builder.graph
    assert isinstance(base, Ref)
    found = builder.slices.get(base.ref)
    if found is None or found.axis != axis or found.written & indices:
        return None
    if base.ref in graph.output_names or base.ref in graph.mutations.values():
        return None
    others = [user for user in graph.users[base.ref] if user is not op]
    return found if all(_reads_written(graph, user, found) for user in others) else None


def _reads_written(graph: OpGraph, user: Op, found: Slices) -> bool:
    """True if an operator takes one slice that is already written, or a value that is used for its shape only."""
    if user.kind == "select":
        shape = found.tensor.shape
        index = integer(user, 2, "index")
        axis = integer(user, 1, "dim")
        if axis % len(shape) == found.axis and index % shape[found.axis] in found.written:
            return True
    return (
        user.kind in ("select", "slice")
        and user.name not in graph.output_names
        and all(reader.kind == "copy" and reader.args[1] != Ref(user.name) for reader in graph.users.get(user.name, ()))
    )
