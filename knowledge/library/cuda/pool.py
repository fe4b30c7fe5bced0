"""Pooling in CUDA: one thread an output, its window walked in registers; neighbours share the caches."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda import launches
from foundry.knowledge.library.cuda.dialect import register
from foundry.knowledge.library.cuda.launches import Launch
from foundry.knowledge.library.cuda.space import (
    Space,
    body_leaves,
    buffers_of,
    decompose,
    emitter,
    identifier,
    indent,
    index_type,
    leaves,
    number,
    parameters,
    tunable,
)
from foundry.knowledge.library.file.assemble import fill
from foundry.knowledge.library.ir.kernels import Plan, PoolKernel, PrintedKernel

THREADS = (64, 128, 256, 512)

_KERNEL = """\
// @OP@ pooling, one thread an output.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    const @INDEX@ point = (@INDEX@)blockIdx.x * @THREADS@ + threadIdx.x;
    if (point >= @POINTS@) return;
@BODY@
}
"""


class _Pool:
    def __init__(self, kernel: PoolKernel, plan: Plan, choices: dict[str, Choice]) -> None:
        self.kernel, self.plan = kernel, plan
        self.type = register(kernel.dtype)
        self.rank = len(kernel.input_size)
        self.threads = number(choices, "threads", THREADS, 256)
        outer = tuple(f"o{d}" for d in range(len(kernel.outer)))
        self.out_names = (*outer, *(f"p{d}" for d in range(self.rank)))
        self.in_names = (*outer, *(f"i{d}" for d in range(self.rank)))
        self.out_sizes = (*kernel.outer, *kernel.output_size)
        self.in_sizes = (*kernel.outer, *kernel.input_size)
        self.found = leaves([kernel.value])
        self.after = body_leaves(kernel.stores)
        in_views = [leaf.view for leaf in self.found]
        out_views = [leaf.view for leaf in self.after] + [store.view for store in kernel.stores]
        wide = [index_type(self.in_sizes, in_views), index_type(self.out_sizes, out_views)]
        self.index = "long long" if "long long" in wide else "int"
        self.inside = Space(self.in_sizes, self.in_names, {v: v for v in in_views}, self.index)
        self.outside = Space(self.out_sizes, self.out_names, {v: v for v in out_views}, self.index)

    def _window(self, d: int) -> list[str]:
        """Bounds of the window along dimension d: first and last input position, and its step."""
        kernel = self.kernel
        size, out = kernel.input_size[d], kernel.output_size[d]
        if not kernel.kernel:
            begin, end = f"(p{d} * {size}) / {out}", f"((p{d} + 1) * {size} + {out - 1}) / {out}"
            return [f"const {self.index} begin{d} = {begin}, end{d} = {end};"]
        start = f"p{d} * {kernel.stride[d]} - {kernel.padding[d]}"
        return [
            f"const {self.index} begin{d} = {start};",
            f"const {self.index} end{d} = begin{d} + {(kernel.kernel[d] - 1) * kernel.dilation[d] + 1};",
        ]

    def _step(self, d: int) -> int:
        return self.kernel.dilation[d] if self.kernel.kernel else 1

    def _divisor(self) -> list[str]:
        """The number an average divides by."""
        kernel = self.kernel
        if kernel.divisor is not None:
            return [f"const T divisor = (T){kernel.divisor};"]
        counts = []
        for d in range(self.rank):
            low, high = f"begin{d}", f"end{d}"
            if kernel.kernel and kernel.count_include_pad:
                high = f"math::minimum<{self.index}>({high}, {kernel.input_size[d] + kernel.padding[d]})"
            elif kernel.kernel:
                low = f"math::maximum<{self.index}>({low}, 0)"
                high = f"math::minimum<{self.index}>({high}, {kernel.input_size[d]})"
            counts.append(f"({high} - {low})")
        return [f"const T divisor = (T)({' * '.join(counts)});"]

    def _body(self) -> list[str]:
        kernel = self.kernel
        lines = decompose("point", self.out_sizes, self.out_names, self.index)
        for d in range(self.rank):
            lines += self._window(d)
        maximum = kernel.op == "max"
        lines.append(f"T best = {'lowest<T>()' if maximum else '(T)0'};")
        if maximum:
            lines.append("long long index = -1;")
        for d in range(self.rank):
            lines.append(f"for ({self.index} i{d} = begin{d}; i{d} < end{d}; i{d} += {self._step(d)}) {{")
            lines.append(f"if (i{d} < 0 || i{d} >= {kernel.input_size[d]}) continue;")
        body = emitter(self.inside, [], {})
        body.lines.append(f"const T x = (T)({body.value(kernel.value)});")
        lines += body.lines
        if maximum:
            flat = "0"
            for d in range(self.rank):
                flat = f"i{d}" if d == 0 else f"({flat}) * {kernel.input_size[d]} + i{d}"
            lines.append(f"if (x > best || x != x || index < 0) best = x, index = {flat};")
        else:
            lines.append("best += x;")
        lines += ["}"] * self.rank
        lines += [] if maximum else self._divisor()
        names = {"acc": "best", "index": "index"} if maximum else {"acc": "(best / divisor)"}
        stores = emitter(self.outside, [], names, "s")
        stores.reserve(store.value for store in kernel.stores)
        for store in kernel.stores:
            stores.store(store, self.outside.offset, self.plan.buffers[store.buffer].dtype)
        return [*lines, *stores.lines]

    def print(self) -> PrintedKernel:
        kernel = self.kernel
        name = launches.KERNEL_PREFIX + identifier(kernel.name)
        reads, writes = buffers_of([*self.found, *self.after], kernel.stores)
        signature, arguments = parameters(self.plan, reads, writes)
        points = math.prod(self.out_sizes)
        values: dict[str, object] = {
            "NAME": name,
            "PARAMETERS": signature,
            "TYPE": self.type,
            "INDEX": self.index,
            "THREADS": self.threads,
            "POINTS": points,
            "OP": {"max": "Maximum", "avg": "Average"}[kernel.op],
            "BODY": indent(self._body()),
        }
        source = fill(_KERNEL, {key: str(value) for key, value in values.items()})
        grid = (math.ceil(points / self.threads), 1, 1)
        launch = Launch(name, grid, (self.threads, 1, 1), tuple(arguments))
        return PrintedKernel(
            functions=source,
            call=launches.encode([launch]),
            template="pool",
            choices={"threads": self.threads},
            tunables=(tunable("threads", THREADS, 256, "parallel", "outputs of a block"),),
            d_mem=1 if kernel.stride[-1:] == (1,) else 0,
            d_algo=1 if len(kernel.ops) > 1 else 0,
            d_sync=0,
        )


def print_pool(kernel: PoolKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a PoolKernel: one thread computes one output.

    `choices` may hold "threads" (of a block: 64, 128, 256, 512); any other value gives way to 256.
    """
    return _Pool(kernel, plan, choices).print()
