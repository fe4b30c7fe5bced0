"""Uniform access to the kernels of the intermediate form: expressions with their iteration spaces, reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import (
    AttentionKernel,
    AuthoredStep,
    Buffer,
    ConvKernel,
    Emit,
    EmitRow,
    Expr,
    Gather,
    GemmKernel,
    GroupedKernel,
    Kernel,
    Let,
    Load,
    PoolKernel,
    RecurrentKernel,
    Reduction,
    RowKernel,
    ScanKernel,
    SegmentKernel,
    SelectKernel,
    SortKernel,
    Store,
    Tail,
    TorchCall,
    View,
)
from foundry.knowledge.opgraph import Ref

Shape = tuple[int, ...]
Step = Kernel | TorchCall
Visit = Callable[[Expr, Shape], Expr]


def store_space(kernel: Kernel) -> Shape:
    """The iteration space (sizes in elements) of a kernel's stores; for maps and rows it is that of all expressions."""
    if isinstance(kernel, RowKernel):
        return kernel.outer + kernel.reduced
    if isinstance(kernel, GemmKernel):
        return (*kernel.batch, *kernel.m_shape, *kernel.n_shape)
    if isinstance(kernel, ConvKernel):
        return (kernel.batch, kernel.out_channels, *kernel.output_size)
    if isinstance(kernel, PoolKernel):
        return kernel.outer + kernel.output_size
    if isinstance(kernel, SelectKernel):
        return (*kernel.outer, kernel.count - kernel.first)
    if isinstance(kernel, AttentionKernel):
        return (*kernel.batch, kernel.rows, kernel.value_head)
    return kernel.shape


def transposed(kernel: GemmKernel) -> GemmKernel:
    """The same product as its transpose, C^T = B^T A^T: operands, sizes and the views of stores are exchanged."""
    first = len(kernel.batch)
    behind = first + len(kernel.m_shape)

    def swap(view: View) -> View:
        """The view with the strides of rows and columns exchanged."""
        batch, rows, columns = view.strides[:first], view.strides[first:behind], view.strides[behind:]
        return View(view.offset, batch + columns + rows)

    return replace(
        kernel,
        m=kernel.n,
        n=kernel.m,
        a=views.map_views(kernel.b, views.swap_last),
        b=views.map_views(kernel.a, views.swap_last),
        constant_a=kernel.constant_b,
        constant_b=kernel.constant_a,
        stores=tuple(views.map_store(store, swap) for store in kernel.stores),
        m_sizes=kernel.n_sizes,
        n_sizes=kernel.m_sizes,
    )


def column_axis(kernel: GemmKernel | ConvKernel) -> int:
    """The axis of the store space that is n of a product (if n is one axis), or the channel of a convolution."""
    return len(kernel.batch) + 1 if isinstance(kernel, GemmKernel) else 1


def tail_of(kernel: Step) -> Tail | None:
    """A product's or convolution's reduction epilogue, else None."""
    return kernel.tail if isinstance(kernel, GemmKernel | ConvKernel) else None


def tail_outer(kernel: GemmKernel | ConvKernel) -> Shape:
    """The iteration space of a reduction epilogue's rows: the number of whole boxes along each axis of the store
    space."""
    assert kernel.tail is not None
    return tuple(size // extent for size, extent in zip(store_space(kernel), kernel.tail.extent, strict=True))


def tail_stores(tail: Tail) -> list[Store]:
    """The stores of a reduction epilogue."""
    return [stage.store for stage in tail.stages if isinstance(stage, Emit | EmitRow)]


def _tail_parts(kernel: GemmKernel | ConvKernel, tail: Tail) -> list[tuple[Expr, Shape]]:
    """(expression, its space) of an epilogue's value and stages, in order."""
    space = store_space(kernel)
    outer = tail_outer(kernel)
    parts = [(tail.value, space)]
    for stage in tail.stages:
        expr = stage.store.value if isinstance(stage, Emit | EmitRow) else stage.value
        parts.append((expr, outer if isinstance(stage, Let | EmitRow) else space))
    return parts


def _rewritten_tail(kernel: GemmKernel | ConvKernel, visit: Visit) -> Tail | None:
    """The epilogue with every expression replaced by `visit(expression, space)`; None without one."""
    tail = kernel.tail
    if tail is None:
        return None
    value, *exprs = (visit(expr, space) for expr, space in _tail_parts(kernel, tail))
    stages = tuple(
        replace(stage, store=replace(stage.store, value=expr))
        if isinstance(stage, Emit | EmitRow)
        else replace(stage, value=expr)
        for stage, expr in zip(tail.stages, exprs, strict=True)
    )
    return replace(tail, value=value, stages=stages)


def stores_of(kernel: Kernel) -> list[Store]:
    """The stores over the store space (of row kernels also those once a row), without those of an epilogue."""
    if isinstance(kernel, RowKernel):
        return [stage.store for stage in kernel.stages if isinstance(stage, Emit | EmitRow)]
    return list(kernel.stores)


def with_stores(kernel: Kernel, stores: tuple[Store, ...]) -> Kernel:
    """A kernel that is not a row kernel, with other stores."""
    assert not isinstance(kernel, RowKernel)
    return replace(kernel, stores=stores)


def inputs_of(kernel: Kernel) -> list[tuple[Expr, Shape]]:
    """(expression, its space) of everything that a kernel computes besides the values of its stores."""
    if isinstance(kernel, RowKernel):
        space = kernel.outer + kernel.reduced
        return [(stage.value, space) for stage in kernel.stages if not isinstance(stage, Emit | EmitRow)]
    if isinstance(kernel, GemmKernel):
        return [(kernel.a, (*kernel.batch, kernel.m, kernel.k)), (kernel.b, (*kernel.batch, kernel.k, kernel.n))]
    if isinstance(kernel, GroupedKernel):
        return [(kernel.a, (kernel.items, kernel.k)), (kernel.b, (kernel.groups, kernel.k, kernel.n))]
    if isinstance(kernel, PoolKernel):
        return [(kernel.value, kernel.outer + kernel.input_size)]
    if isinstance(kernel, SelectKernel):
        return [(kernel.value, (*kernel.outer, kernel.length))]
    if isinstance(kernel, ScanKernel):
        return [(kernel.value, kernel.shape)]
    if isinstance(kernel, SortKernel):
        return [(kernel.key, (kernel.items,))]
    if isinstance(kernel, SegmentKernel):
        own = [] if kernel.key is None else [(kernel.key, (kernel.items,))]
        return [(kernel.value, (kernel.items, *kernel.shape[1:])), *own]
    if isinstance(kernel, AttentionKernel) and kernel.mask is not None:
        return [(kernel.mask, (*kernel.batch, kernel.rows, kernel.columns))]
    return []


def expressions(kernel: Kernel) -> Iterator[tuple[Expr, Shape]]:
    """(expression, its space) of everything in a kernel that may be rewritten."""
    yield from inputs_of(kernel)
    space = store_space(kernel)
    for store in stores_of(kernel):
        yield store.value, space
    if isinstance(kernel, GemmKernel | ConvKernel) and kernel.tail is not None:
        yield from _tail_parts(kernel, kernel.tail)


def rewritten(kernel: Kernel, visit: Visit) -> Kernel:
    """The kernel with every expression of it (values, operands, epilogue) replaced by `visit(expression, space)`."""
    space = store_space(kernel)

    def stored(store: Store) -> Store:
        """The store with its value rewritten by `visit`."""
        return replace(store, value=visit(store.value, space))

    if isinstance(kernel, RowKernel):
        stages: list[object] = []
        for stage in kernel.stages:
            if isinstance(stage, Emit | EmitRow):
                stages.append(replace(stage, store=stored(stage.store)))
            else:
                stages.append(replace(stage, value=visit(stage.value, space)))
        return replace(kernel, stages=tuple(stages))  # type: ignore[arg-type]
    stores = tuple(stored(store) for store in kernel.stores)
    if isinstance(kernel, GemmKernel):
        a, b = (visit(expr, shape) for expr, shape in inputs_of(kernel))
        return replace(kernel, a=a, b=b, stores=stores, tail=_rewritten_tail(kernel, visit))
    if isinstance(kernel, GroupedKernel):
        a, b = (visit(expr, shape) for expr, shape in inputs_of(kernel))
        return replace(kernel, a=a, b=b, stores=stores)
    if isinstance(kernel, ConvKernel):
        return replace(kernel, stores=stores, tail=_rewritten_tail(kernel, visit))
    if isinstance(kernel, SortKernel):
        return replace(kernel, key=visit(kernel.key, (kernel.items,)))
    if isinstance(kernel, SegmentKernel):
        value, *keys = (visit(expr, shape) for expr, shape in inputs_of(kernel))
        return replace(kernel, value=value, key=keys[0] if keys else None, stores=stores)
    if isinstance(kernel, PoolKernel | ScanKernel | SelectKernel):
        (value,) = (visit(expr, shape) for expr, shape in inputs_of(kernel))
        return replace(kernel, value=value, stores=stores)
    if isinstance(kernel, AttentionKernel) and kernel.mask is not None:
        ((mask, shape),) = inputs_of(kernel)
        return replace(kernel, mask=visit(mask, shape), stores=stores)
    return replace(kernel, stores=stores)


def loaded_names(*exprs: Expr) -> set[str]:
    """Buffers that the expressions load or gather from."""
    return {node.buffer for node in views.nodes(*exprs) if isinstance(node, Load | Gather)}


def fixed_reads(step: Step) -> set[str]:
    """Buffers that a step must read from memory, because no expression can replace these loads."""
    if isinstance(step, ConvKernel):
        return {step.x, step.weight}
    if isinstance(step, AttentionKernel):
        return {step.q.buffer, step.k.buffer, step.v.buffer}
    if isinstance(step, RecurrentKernel):
        return {load.buffer for load in cell_loads(step)}
    if isinstance(step, SegmentKernel | GroupedKernel):
        return {step.starts, step.order} - {""}
    if isinstance(step, AuthoredStep):
        return set(step.reads)
    if isinstance(step, TorchCall):
        return set(_refs([*step.args, *step.kwargs.values()]))
    return set()


def cell_loads(kernel: RecurrentKernel) -> list[Load]:
    """All loads of the cells of recurrent layers."""
    cells = [cell for layer in kernel.layers for cell in layer]
    found = [load for c in cells for load in (c.weight, c.bias, c.h, c.c, c.given, c.below, c.below_bias)]
    return [load for load in found if load is not None]


def last_states(kernel: RecurrentKernel) -> list[str]:
    """Buffers of the states after the last step."""
    return [name for name in (kernel.last_h, kernel.last_c) if name]


def _refs(items: list[object]) -> Iterator[str]:
    """Names of the values among a call's arguments."""
    for item in items:
        if isinstance(item, Ref):
            yield item.ref
        elif isinstance(item, list):
            yield from _refs(item)


def reads(step: Step) -> set[str]:
    """Buffers that a step reads."""
    found = fixed_reads(step)
    if not isinstance(step, TorchCall):
        found |= loaded_names(*(expr for expr, _ in expressions(step)))
    return found


def writes(step: Step) -> set[str]:
    """Names of the buffers that a step writes: results of a call, stores, epilogues, last states."""
    if isinstance(step, TorchCall):
        return {name for name in step.results if name}
    if isinstance(step, AuthoredStep):
        return set(step.writes)
    if isinstance(step, SortKernel):
        return {step.starts, step.order}
    tail = tail_of(step)
    states = last_states(step) if isinstance(step, RecurrentKernel) else []
    return {*states, *(store.buffer for store in [*stores_of(step), *(tail_stores(tail) if tail else [])])}


def shares_memory(buffers: Mapping[str, Buffer], name: str, written: Iterable[str]) -> bool:
    """True if a buffer that a kernel reads is the old value of one that it writes in the same memory."""
    key = buffers[name].key
    return bool(key) and any(buffers[other].is_in_place and buffers[other].key == key for other in written)


def buffers_of_step(step: Step) -> set[str]:
    """Names of the buffers that a step reads or writes."""
    return reads(step) | writes(step)


def is_prepared(step: Step, buffers: Mapping[str, Buffer]) -> bool:
    """True if a step runs only after a parameter has changed."""
    made = writes(step)
    return bool(made) and all(buffers[name].role == "prepared" for name in made)


def reductions_of(kernel: RowKernel) -> list[Reduction]:
    """The stages of a row kernel that are reductions, in order."""
    return [stage for stage in kernel.stages if isinstance(stage, Reduction)]


def step_buffers(step: Step) -> tuple[list[str], list[str]]:
    """(buffers read, buffers written) by a step, each once."""
    reads: list[str] = []
    writes: list[str] = []

    def visit(item: object) -> None:
        """Appends the buffers that a part of a step reads and writes; a shared part only once."""
        if isinstance(item, Store):
            writes.append(item.buffer)
            visit(item.value)
        elif isinstance(item, Ref):
            reads.append(item.ref)
        elif isinstance(item, tuple | list):
            for part in item:
                visit(part)
        elif isinstance(item, dict):
            visit(list(item.values()))
        elif is_dataclass(item) and not isinstance(item, type):
            if id(item) in seen:
                return
            seen[id(item)] = item
            if isinstance(item, Load | Gather):
                reads.append(item.buffer)
            for entry in fields(item):
                visit(getattr(item, entry.name))

    seen: dict[int, object] = {}
    visit(step)
    if isinstance(step, ConvKernel):
        reads += [step.x, step.weight]
    if isinstance(step, AttentionKernel):
        reads += [step.q.buffer, step.k.buffer, step.v.buffer]
    if isinstance(step, AuthoredStep):
        reads += step.reads
        writes += step.writes
    if isinstance(step, SegmentKernel | GroupedKernel):
        reads += filter(None, [step.starts, step.order])
    if isinstance(step, SortKernel):
        writes += [step.starts, step.order]
    if isinstance(step, RecurrentKernel):
        writes += last_states(step)
    if isinstance(step, TorchCall):
        writes += filter(None, step.results)
    return list(dict.fromkeys(reads)), list(dict.fromkeys(writes))
