"""Arithmetic and compulsory memory traffic of one kernel, for the roofline."""

from __future__ import annotations

import math

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import (
    expressions,
    fixed_reads,
    is_prepared,
    last_states,
    loaded_names,
    reductions_of,
    store_space,
    stores_of,
    tail_of,
    tail_outer,
)
from foundry.knowledge.compiler.ir.kernels import (
    GATES,
    Apply,
    AttentionKernel,
    AuthoredStep,
    ConvKernel,
    Emit,
    EmitRow,
    Expr,
    Gather,
    GemmKernel,
    GroupedKernel,
    Kernel,
    Load,
    Plan,
    PoolKernel,
    RecurrentKernel,
    Reduction,
    RowKernel,
    ScanKernel,
    SegmentKernel,
    SelectKernel,
    SortKernel,
    TorchCall,
    View,
)
from foundry.knowledge.opgraph import ITEM_BYTES

Shape = tuple[int, ...]


def _operations(expr: Expr) -> int:
    """Number of scalar operations in an expression."""
    return sum(isinstance(node, Apply) and node.op != "cast" for node in views.nodes(expr))


def flops(kernel: Kernel) -> int:
    """Arithmetic operations: two for each multiply-add, one for any scalar operation or step of a reduction."""
    total = sum(_operations(expr) * math.prod(space) for expr, space in expressions(kernel))
    if isinstance(kernel, GemmKernel):
        total += 2 * math.prod(kernel.batch) * kernel.m * kernel.n * kernel.k
    elif isinstance(kernel, GroupedKernel):
        total += 2 * kernel.items * kernel.n * kernel.k
    elif isinstance(kernel, ConvKernel):
        taps = math.prod(kernel.kernel)
        pixels = math.prod(kernel.input_size if kernel.transposed else kernel.output_size)
        channels = kernel.in_channels * kernel.out_channels // kernel.groups
        total += 2 * kernel.batch * channels * pixels * taps
    elif isinstance(kernel, AttentionKernel):
        heads = kernel.head + kernel.value_head
        total += 2 * math.prod(kernel.batch) * kernel.rows * kernel.columns * heads // (2 if kernel.causal else 1)
    elif isinstance(kernel, PoolKernel):
        taps = math.prod(kernel.kernel) if kernel.kernel else 1
        total += math.prod(store_space(kernel)) * taps
    elif isinstance(kernel, RowKernel):
        total += len(reductions_of(kernel)) * math.prod(store_space(kernel))
    elif isinstance(kernel, ScanKernel):
        total += math.prod(kernel.shape)
    elif isinstance(kernel, SelectKernel):  # each element is compared at least once
        total += math.prod(kernel.outer) * kernel.length
    elif isinstance(kernel, SegmentKernel):
        total += kernel.items * math.prod(kernel.shape[1:])
    elif isinstance(kernel, RecurrentKernel):
        total += _recurrent_flops(kernel)
    elif isinstance(kernel, AuthoredStep):
        total += kernel.flops
    tail = tail_of(kernel)
    if tail is not None:
        total += sum(isinstance(stage, Reduction) for stage in tail.stages) * math.prod(store_space(kernel))
    return total


def _recurrent_flops(kernel: RecurrentKernel) -> int:
    """Operations of the products of a recurrent kernel."""
    _, steps, batch, hidden = kernel.shape
    cells = [cell for layer in kernel.layers for cell in layer]
    products = len(cells) + sum(cell.below is not None for cell in cells)
    return 2 * steps * batch * hidden * GATES[kernel.cell] * hidden * products


def _distinct(view: View, space: Shape, limit: int) -> int:
    """An upper bound of the number of distinct elements that a view reaches."""
    return min(limit, math.prod(size for size, stride in zip(space, view.strides, strict=True) if stride))


def _image_elements(kernel: ConvKernel) -> int:
    """Number of elements of a convolution's input."""
    return kernel.batch * kernel.in_channels * math.prod(kernel.input_size)


def traffic_bytes(kernel: Kernel, plan: Plan) -> int:
    """Bytes of all elements that the kernel reads or writes, each counted once."""
    elements: dict[str, int] = {}

    def note(name: str, count: int) -> None:
        """Counts this many elements of a buffer: the largest count so far, at most its size."""
        elements[name] = min(plan.buffers[name].numel, max(elements.get(name, 0), count))

    for expr, space in expressions(kernel):
        for node in views.nodes(expr):
            if isinstance(node, Load):
                note(node.buffer, _distinct(node.view, space, plan.buffers[node.buffer].numel))
            elif isinstance(node, Gather):
                note(node.buffer, min(plan.buffers[node.buffer].numel, math.prod(space)))
    for name in fixed_reads(kernel):
        if isinstance(kernel, ConvKernel) and name == kernel.x:  # its images may be part of a larger buffer
            note(name, _image_elements(kernel))
        else:
            note(name, plan.buffers[name].numel)
    read = sum(count * ITEM_BYTES[plan.buffers[name].dtype] for name, count in elements.items())
    space = store_space(kernel)
    if isinstance(kernel, SegmentKernel) and kernel.in_place:
        space = (kernel.items, *kernel.shape[1:])
    whole = [plan.buffers[name] for name in (kernel.writes if isinstance(kernel, AuthoredStep) else ())]
    whole += [plan.buffers[name] for name in ((kernel.starts, kernel.order) if isinstance(kernel, SortKernel) else ())]
    whole += [plan.buffers[name] for name in (last_states(kernel) if isinstance(kernel, RecurrentKernel) else ())]
    written = sum(buffer.numel * ITEM_BYTES[buffer.dtype] for buffer in whole)
    for store in stores_of(kernel):
        buffer = plan.buffers[store.buffer]
        written += _distinct(store.view, space, buffer.numel) * ITEM_BYTES[buffer.dtype]
    if isinstance(kernel, GemmKernel | ConvKernel) and kernel.tail is not None:
        for stage in kernel.tail.stages:
            if isinstance(stage, Emit | EmitRow):
                buffer = plan.buffers[stage.store.buffer]
                over = tail_outer(kernel) if isinstance(stage, EmitRow) else space
                written += _distinct(stage.store.view, over, buffer.numel) * ITEM_BYTES[buffer.dtype]
    return read + written


def compulsory_bytes(plan: Plan) -> int:
    """Bytes of inputs and weights that the steps of a call read, counted once, and of values returned or written
    back."""
    read: set[str] = set()
    for step in plan.steps:
        if is_prepared(step, plan.buffers):
            continue
        read |= fixed_reads(step)
        if not isinstance(step, TorchCall):
            for expr, _ in expressions(step):
                read |= loaded_names(expr)
    kept = {view.buffer for view in plan.outputs if view.buffer}
    kept |= {name for name in plan.write_backs.values() if not plan.buffers[name].is_in_place}
    given = ("input", "parameter", "prepared")
    outside = {n for n in read if plan.buffers[n].role in given or plan.buffers[n].is_in_place} | kept
    return sum(plan.buffers[name].numel * ITEM_BYTES[plan.buffers[name].dtype] for name in outside)
