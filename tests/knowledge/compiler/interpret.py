"""Evaluates plans with plain torch indexing: what the intermediate form means, independent of any printer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tests.knowledge.compiler.interpret_segments import multiply_groups, reduce_segments, select_items, sort_items
from torch.nn import functional

from foundry.knowledge.compiler.ir.access import store_space, tail_outer
from foundry.knowledge.compiler.ir.kernels import (
    GATES,
    Apply,
    AttentionKernel,
    Const,
    ConvKernel,
    Emit,
    EmitRow,
    Expr,
    Gather,
    GemmKernel,
    GroupedKernel,
    Iota,
    Let,
    Load,
    MapKernel,
    Named,
    Plan,
    PoolKernel,
    RecurrentCell,
    RecurrentKernel,
    Reduction,
    RowKernel,
    ScanKernel,
    SegmentKernel,
    SelectKernel,
    SortKernel,
    Store,
    TorchCall,
    View,
)
from foundry.knowledge.opgraph import WRITTEN, Ref, written_input

Shape = tuple[int, ...]
Tensors = dict[str, torch.Tensor]


def _order_key(x: torch.Tensor) -> torch.Tensor:
    """Floats as the upper halves of integers that order them."""
    bits = torch.where(x == 0, 0.0, x).view(torch.int32).long()
    bits = torch.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)
    return torch.where(x.isnan(), 0x7FFFFFFF, bits) * (1 << 32)


def _of_order_key(key: torch.Tensor) -> torch.Tensor:
    high = key >> 32
    return torch.where(high < 0, (-high - 1) | -(1 << 31), high).to(torch.int32).view(torch.float32)


_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "softsign": functional.softsign,
    "selu": functional.selu,
    "logsigmoid": functional.logsigmoid,
    "floordiv": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "order_key": _order_key,
    "of_order_key": _of_order_key,
    "leaky_relu": lambda x, slope: torch.where(x > 0, x, x * slope),
    "elu": lambda x, alpha: torch.where(x > 0, x, torch.expm1(x) * alpha),
    **{name: getattr(torch.special, name) for name in ("erfcx", "i0", "i0e", "i1", "i1e", "zeta")},
    **{name: getattr(torch.special, name) for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")},
    **{f"chebyshev_{kind}": getattr(torch.special, f"chebyshev_polynomial_{kind}") for kind in "tuvw"},
    "hermite_h": torch.special.hermite_polynomial_h,
    "hermite_he": torch.special.hermite_polynomial_he,
    "laguerre": torch.special.laguerre_polynomial_l,
    "legendre": torch.special.legendre_polynomial_p,
    "fma": lambda a, b, c: a * b + c,
    "clamp": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    "where": lambda c, a, b: torch.where(c != 0, a, b),
}


def torch_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


class Machine:
    """Buffers as flat storage, and the evaluation of expressions over a space."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.flat: Tensors = {}

    def offsets(self, view: View, space: Shape) -> torch.Tensor:
        total = torch.full(space, view.offset, dtype=torch.int64)
        for axis, (size, stride) in enumerate(zip(space, view.strides, strict=True)):
            shape = [1] * len(space)
            shape[axis] = size
            total = total + (torch.arange(size) * stride).reshape(shape)
        return total

    def evaluate(self, expr: Expr, space: Shape, names: Mapping[str, torch.Tensor]) -> torch.Tensor:
        memo: dict[int, torch.Tensor] = {}

        def visit(node: Expr) -> torch.Tensor:
            if id(node) not in memo:
                result = compute(node)
                assert result.dtype == torch_dtype(node.dtype), (node, result.dtype)
                memo[id(node)] = result
            return memo[id(node)]

        def compute(node: Expr) -> torch.Tensor:
            if isinstance(node, Load):
                assert self.plan.buffers[node.buffer].dtype == node.dtype
                return self._take(node.buffer, self.offsets(node.view, space))
            if isinstance(node, Iota):
                return self.offsets(node.view, space).to(torch_dtype(node.dtype))
            if isinstance(node, Const):
                return torch.full(space, node.value, dtype=torch_dtype(node.dtype))
            if isinstance(node, Named):
                return names[node.name].expand(space)
            if isinstance(node, Gather):
                index = visit(node.index)
                index = torch.where(index < 0, index + node.bound, index)
                inside = (index >= 0) & (index < node.bound)
                assert node.fill is not None or bool(inside.all())
                found = self._take(
                    node.buffer, self.offsets(node.view, space) + index.clamp(0, node.bound - 1) * node.step
                )
                return found if node.fill is None else torch.where(inside, found, node.fill)
            return self.apply(node, [visit(argument) for argument in node.args])

        return visit(expr)

    def _take(self, buffer: str, where: torch.Tensor) -> torch.Tensor:
        return self.flat[buffer][where]

    def apply(self, node: Apply, args: list[torch.Tensor]) -> torch.Tensor:
        dtype = torch_dtype(node.dtype)
        if node.op == "cast":
            return args[0].to(dtype)
        function = _OPS.get(node.op) or getattr(torch, node.op)
        result: torch.Tensor = function(*args)
        return result.to(dtype)

    def store(self, store: Store, space: Shape, names: Mapping[str, torch.Tensor]) -> None:
        value = self.evaluate(store.value, space, names)
        assert value.dtype == torch_dtype(self.plan.buffers[store.buffer].dtype), store
        where = self.offsets(store.view, space)
        self.flat[store.buffer][where.reshape(-1)] = value.reshape(-1)


def run(plan: Plan, inputs: Sequence[Any], state: Mapping[str, torch.Tensor]) -> tuple[list[Any], Tensors]:
    """The results of forward and the written-back state; inputs that are written keep their values."""
    machine = Machine(plan)
    copies = {place: item.clone() for place, item in enumerate(inputs) if isinstance(item, torch.Tensor)}
    for name, buffer in plan.buffers.items():
        dtype = torch_dtype(buffer.dtype)
        if buffer.role == "constant":
            machine.flat[name] = torch.tensor(buffer.data, dtype=torch.float64).to(dtype)
        elif buffer.role in ("input", "parameter"):
            tensor = inputs[int(buffer.source)] if buffer.role == "input" else state[buffer.source]
            if WRITTEN + buffer.source in plan.write_backs and buffer.role == "input":
                tensor = copies[int(buffer.source)]  # one memory for reads and writes
            assert (
                tensor.dtype == dtype
                and tuple(tensor.shape) == buffer.shape
                and tuple(tensor.stride()) == buffer.strides
            )
            reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            machine.flat[name] = tensor.detach().as_strided((reach,), (1,), tensor.storage_offset())
        elif buffer.is_in_place:
            place = written_input(buffer.source)
            held = copies[int(place)] if place else state[buffer.source].detach().clone()
            machine.flat[name] = held.view(-1)
        else:
            poison = math.nan if dtype.is_floating_point else 77 if dtype != torch.bool else True
            machine.flat[name] = torch.full((max(buffer.numel, 1),), poison, dtype=dtype)
    machine.flat |= {name: machine.flat[buffer.memory] for name, buffer in plan.buffers.items() if buffer.memory}
    for step in plan.steps:
        execute(machine, step)
    results: list[Any] = []
    for view in plan.outputs:
        if not view.buffer:
            new = plan.write_backs.get(WRITTEN + view.given)
            results.append(view.literal if new is None else machine.flat[new].view(plan.buffers[new].shape).clone())
            continue
        results.append(machine.flat[view.buffer].as_strided(view.shape, view.strides, view.offset).clone())
    written = {key: machine.flat[name].reshape(plan.buffers[name].shape) for key, name in plan.write_backs.items()}
    return results, written


def execute(machine: Machine, step: object) -> None:
    if isinstance(step, MapKernel):
        read = {node.buffer for store in step.stores for node in _nodes(store.value) if isinstance(node, Load | Gather)}
        assert not read & {store.buffer for store in step.stores}, "a map feeds itself"
        for store in step.stores:
            machine.store(store, step.shape, {})
    elif isinstance(step, RowKernel):
        _row(machine, step)
    elif isinstance(step, ScanKernel):
        _scan(machine, step)
    elif isinstance(step, GroupedKernel):
        multiply_groups(machine, step)
    elif isinstance(step, GemmKernel):
        a = machine.evaluate(step.a, (*step.batch, step.m, step.k), {}).to(torch_dtype(step.dtype))
        b = machine.evaluate(step.b, (*step.batch, step.k, step.n), {}).to(torch_dtype(step.dtype))
        acc, space = torch.matmul(a, b), store_space(step)
        for store in step.stores:
            machine.store(store, space, {"acc": acc.reshape(space)})
        _tail(machine, step, acc)
    elif isinstance(step, ConvKernel):
        _conv(machine, step)
    elif isinstance(step, PoolKernel):
        _pool(machine, step)
    elif isinstance(step, AttentionKernel):
        _attention(machine, step)
    elif isinstance(step, RecurrentKernel):
        _recurrent(machine, step)
    elif isinstance(step, SelectKernel):
        select_items(machine, step)
    elif isinstance(step, SortKernel):
        sort_items(machine, step)
    elif isinstance(step, SegmentKernel):
        reduce_segments(machine, step)
    else:
        assert isinstance(step, TorchCall)
        _call(machine, step)


def _nodes(expr: Expr) -> list[Expr]:
    from foundry.knowledge.compiler.ir.views import nodes

    return list(nodes(expr))


def _row(machine: Machine, kernel: RowKernel) -> None:
    space = kernel.outer + kernel.reduced
    rank, count = len(kernel.outer), math.prod(kernel.reduced)
    names: Tensors = {}

    def column(value: torch.Tensor) -> torch.Tensor:
        return value.reshape(kernel.outer + (1,) * len(kernel.reduced))

    def invariant(expr: Expr) -> None:
        for node in _nodes(expr):
            if isinstance(node, Load | Gather | Iota):
                assert not any(node.view.strides[rank:]), "a row value varies along the row"

    for stage in kernel.stages:
        if isinstance(stage, Reduction):
            value = machine.evaluate(stage.value, space, names).reshape((*kernel.outer, count))
            names |= {name: column(found) for name, found in reduce_rows(stage, value).items()}
        elif isinstance(stage, Let):
            invariant(stage.value)
            names[stage.name] = machine.evaluate(stage.value, kernel.outer + (1,) * len(kernel.reduced), names)
        elif isinstance(stage, Emit):
            machine.store(stage.store, space, names)
        else:
            assert isinstance(stage, EmitRow)
            assert not any(stage.store.view.strides[rank:])
            invariant(stage.store.value)
            machine.store(stage.store, kernel.outer + (1,) * len(kernel.reduced), names)


def _scan(machine: Machine, kernel: ScanKernel) -> None:
    value = machine.evaluate(kernel.value, kernel.shape, {}).to(torch_dtype(kernel.dtype))
    value = value.flip(-1) if kernel.reverse else value
    scans: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sum": lambda x: x.cumsum(-1),
        "prod": lambda x: x.cumprod(-1),
        "max": lambda x: x.cummax(-1).values,
        "min": lambda x: x.cummin(-1).values,
        "logsumexp": lambda x: x.logcumsumexp(-1),
    }
    acc = scans[kernel.op](value)
    if kernel.exclusive:
        first = torch.full_like(acc[..., :1], {"sum": 0, "prod": 1}[kernel.op])
        acc = torch.cat([first, acc[..., :-1]], -1)
    acc = acc.flip(-1) if kernel.reverse else acc
    for store in kernel.stores:
        machine.store(store, kernel.shape, {"acc": acc})


def _conv(machine: Machine, kernel: ConvKernel) -> None:
    x = machine.flat[kernel.x].as_strided(
        (kernel.batch, kernel.in_channels, *kernel.input_size), kernel.x_strides, kernel.x_offset
    )
    rank = len(kernel.kernel)
    per_group = (
        (kernel.in_channels, kernel.out_channels // kernel.groups)
        if kernel.transposed
        else (kernel.out_channels, kernel.in_channels // kernel.groups)
    )
    weight = machine.flat[kernel.weight].reshape(*per_group, *kernel.kernel)
    dtype = torch_dtype(kernel.dtype)
    if not kernel.transposed:
        acc = getattr(functional, f"conv{rank}d")(
            x.to(dtype), weight.to(dtype), None, kernel.stride, kernel.padding, kernel.dilation, kernel.groups
        )
    else:
        least = [
            (size - 1) * step - 2 * pad + reach * (width - 1) + 1
            for size, step, pad, reach, width in zip(
                kernel.input_size, kernel.stride, kernel.padding, kernel.dilation, kernel.kernel, strict=True
            )
        ]
        extra = [want - have for want, have in zip(kernel.output_size, least, strict=True)]
        acc = getattr(functional, f"conv_transpose{rank}d")(
            x.to(dtype), weight.to(dtype), None, kernel.stride, kernel.padding, extra, kernel.groups, kernel.dilation
        )
    space = (kernel.batch, kernel.out_channels, *kernel.output_size)
    assert tuple(acc.shape) == space
    for store in kernel.stores:
        machine.store(store, space, {"acc": acc})
    _tail(machine, kernel, acc)


def _tail(machine: Machine, kernel: GemmKernel | ConvKernel, acc: torch.Tensor) -> None:
    """The tail's stages: rows are brought to the front of the store space, what they consist of behind them."""
    tail = kernel.tail
    if tail is None:
        return
    space, rows = tuple(acc.shape), tail_outer(kernel)
    cut = tuple(size for pair in zip(rows, tail.extent, strict=True) for size in pair)
    whole = tuple(slice(0, count * extent) for count, extent in zip(rows, tail.extent, strict=True))
    order = [*range(0, len(cut), 2), *range(1, len(cut), 2)]
    of_rows: Tensors = {}

    def names() -> Tensors:
        """The values of the named stages, over the store space."""
        spread = dict(of_rows)
        for axis, extent in enumerate(tail.extent) if math.prod(cut) == math.prod(space) else ():
            spread = {name: value.repeat_interleave(extent, axis) for name, value in spread.items()}
        return {**spread, "acc": machine.evaluate(tail.value, space, {"acc": acc})}

    for stage in tail.stages:
        if isinstance(stage, Reduction):
            value = machine.evaluate(stage.value, space, names())[whole].reshape(cut).permute(order)
            of_rows |= reduce_rows(stage, value.reshape((*rows, -1)))
        elif isinstance(stage, Let):
            of_rows[stage.name] = machine.evaluate(stage.value, rows, of_rows)
        else:
            machine.store(stage.store, *((space, names()) if isinstance(stage, Emit) else (rows, of_rows)))


def reduce_rows(stage: Reduction, value: torch.Tensor) -> Tensors:
    """Runs a reduction of the last dimension."""
    if stage.op == "moments":
        mean = value.double().mean(-1)
        m2 = (value.double() - mean.unsqueeze(-1)).square().sum(-1)
        return {f"{stage.name}.mean": mean.to(value.dtype), f"{stage.name}.m2": m2.to(value.dtype)}
    dtype = torch_dtype(stage.dtype)
    reduced: torch.Tensor
    if stage.op in ("sum", "prod"):
        reduced = getattr(torch, stage.op)(value.to(dtype), dim=-1, dtype=dtype)
    elif stage.op in ("max", "min"):
        reduced = (torch.amax if stage.op == "max" else torch.amin)(value, dim=-1)
    elif stage.op in ("argmax", "argmin", "any", "all"):
        reduced = getattr(torch, stage.op)(value, dim=-1)
    else:
        reduced = torch.logsumexp(value, dim=-1)
    return {stage.name: reduced.to(dtype)}


def _pool(machine: Machine, kernel: PoolKernel) -> None:
    """Window by window: slow and plain."""
    value = machine.evaluate(kernel.value, kernel.outer + kernel.input_size, {}).to(torch_dtype(kernel.dtype))
    rank = len(kernel.input_size)
    flat = value.reshape(-1, *kernel.input_size)
    acc = torch.zeros((flat.shape[0], *kernel.output_size), dtype=value.dtype)
    index = torch.zeros_like(acc, dtype=torch.int64)
    positions = torch.arange(math.prod(kernel.input_size)).reshape(kernel.input_size)
    for point in torch.cartesian_prod(*(torch.arange(size) for size in kernel.output_size)).reshape(-1, rank).tolist():
        chosen, count = _window(kernel, point)
        places: Any = torch.meshgrid(*map(torch.tensor, chosen), indexing="ij")
        window = flat[(slice(None), *places)].reshape(flat.shape[0], -1)
        where = positions[places].reshape(-1)
        at: Any = (slice(None), *point)
        if kernel.op == "max":
            acc[at], best = window.max(-1)
            index[at] = where[best]
        else:
            acc[at] = window.sum(-1) / (kernel.divisor or count)
    outer = kernel.outer + kernel.output_size
    for store in kernel.stores:
        machine.store(store, outer, {"acc": acc.reshape(outer), "index": index.reshape(outer)})


def _window(kernel: PoolKernel, point: list[int]) -> tuple[list[list[int]], int]:
    chosen, padded = [], 1
    for axis, at in enumerate(point):
        size = kernel.input_size[axis]
        if not kernel.kernel:
            out = kernel.output_size[axis]
            low, high = at * size // out, -(-(at + 1) * size // out)
            chosen.append(list(range(low, high)))
            padded *= high - low
            continue
        start = at * kernel.stride[axis] - kernel.padding[axis]
        reach = [start + tap * kernel.dilation[axis] for tap in range(kernel.kernel[axis])]
        chosen.append([where for where in reach if 0 <= where < size])
        padded *= len(reach)
    count = padded if kernel.count_include_pad else math.prod(len(axis) for axis in chosen)
    return chosen, count


def _attention(machine: Machine, kernel: AttentionKernel) -> None:
    dtype = torch_dtype(kernel.dtype)
    q = machine.evaluate(kernel.q, (*kernel.batch, kernel.rows, kernel.head), {}).to(dtype)
    k = machine.evaluate(kernel.k, (*kernel.batch, kernel.columns, kernel.head), {}).to(dtype)
    v = machine.evaluate(kernel.v, (*kernel.batch, kernel.columns, kernel.value_head), {}).to(dtype)
    scores = q @ k.transpose(-1, -2) * kernel.scale
    if kernel.mask is not None:
        scores = scores + machine.evaluate(kernel.mask, (*kernel.batch, kernel.rows, kernel.columns), {})
    if kernel.causal:
        hidden = torch.ones(kernel.rows, kernel.columns, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores, -1)
    if kernel.empty_rows == "zero":
        weights = torch.where((scores == -math.inf).all(-1, keepdim=True), 0.0, weights)
    acc = weights @ v
    for store in kernel.stores:
        machine.store(store, (*kernel.batch, kernel.rows, kernel.value_head), {"acc": acc})


def _recurrent(machine: Machine, kernel: RecurrentKernel) -> None:
    """RecurrentCell by cell and step by step."""
    directions, _, batch, hidden = kernel.shape
    above: list[torch.Tensor] = []
    for layer, cells in enumerate(kernel.layers):
        row, below = kernel.first + layer * directions, above
        above = []
        for direction, cell in enumerate(cells):
            walked, h, c = _walk(machine, kernel, cell, below[0] if below else None, reverse=direction == 1)
            above.append(walked)
            for name, state in ((kernel.last_h, h), (kernel.last_c, c)):
                if name:
                    whole = machine.flat[name].view(-1, batch, hidden)
                    whole[row + direction] = state.to(whole.dtype)
    for store in kernel.stores:
        machine.store(store, kernel.shape, {"acc": torch.stack(above)})


def _walk(
    machine: Machine, kernel: RecurrentKernel, cell: RecurrentCell, below: torch.Tensor | None, *, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(hidden states of all steps, the last one, the last cell state) of one layer in one direction."""
    _, steps, batch, hidden = kernel.shape
    width, dtype = GATES[kernel.cell] * hidden, torch_dtype(kernel.dtype)

    def known(load: Load | None, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype) if load is None else machine.evaluate(load, shape, {}).to(dtype)

    if below is None:
        given = known(cell.given, steps, batch, width)
    else:
        given = below @ known(cell.below, width, hidden).T + known(cell.below_bias, width)
    weight, bias = known(cell.weight, width, hidden), known(cell.bias, width)
    h, c = known(cell.h, batch, hidden), known(cell.c, batch, hidden)
    found = [h] * steps
    for step in reversed(range(steps)) if reverse else range(steps):
        own = h @ weight.T + bias
        if kernel.cell == "lstm":
            enters, forgets, new, leaves = (given[step] + own).chunk(4, -1)
            c = forgets.sigmoid() * c + enters.sigmoid() * new.tanh()
            h = leaves.sigmoid() * c.tanh()
        elif kernel.cell == "gru":
            (reset, update, new), (own_reset, own_update, own_new) = given[step].chunk(3, -1), own.chunk(3, -1)
            update = (update + own_update).sigmoid()
            new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
            h = new + update * (h - new)
        else:
            h = (given[step] + own).tanh() if kernel.cell == "rnn_tanh" else (given[step] + own).relu()
        found[step] = h
    return torch.stack(found), h, c


def _call(machine: Machine, call: TorchCall) -> None:
    def plain(item: object) -> Any:
        if isinstance(item, Ref):
            buffer = machine.plan.buffers[item.ref]
            return machine.flat[item.ref].as_strided(buffer.shape, buffer.strides)
        if isinstance(item, list | tuple):
            return [plain(member) for member in item]
        return item

    namespace, name, overload = call.target.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    kwargs = {key: plain(item) for key, item in call.kwargs.items()}
    if "dtype" in kwargs:
        kwargs["dtype"] = torch_dtype(kwargs["dtype"])
    found = function(*(plain(item) for item in call.args), **kwargs)
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    for name, result in zip(call.results, results, strict=True):
        if name:
            machine.flat[name] = result.detach().contiguous().reshape(-1)
