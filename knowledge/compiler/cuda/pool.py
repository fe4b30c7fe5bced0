"""Pooling in CUDA: one thread an output, its window walked in registers; neighbours share the caches."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.launches import Launch, symbol_of
from foundry.knowledge.compiler.cuda.pool_columns import fits_columns, print_columns
from foundry.knowledge.compiler.cuda.pool_space import PoolSpace
from foundry.knowledge.compiler.cuda.printed import print_launches
from foundry.knowledge.compiler.cuda.space import (
    decompose,
    indent,
    make_emitter,
    signature_of,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.ir.kernels import Plan, PoolKernel, PrintedKernel
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device

THREADS = (64, 128, 256, 512)
PATHS = ("points", "columns")

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
    """Prints a pool with one thread for each output, which walks the output's window."""

    def __init__(self, kernel: PoolKernel, plan: Plan, tuning: Tuning) -> None:
        self.kernel, self.plan, self.tuning = kernel, plan, tuning
        self.space = PoolSpace(kernel, plan)
        self.threads = tuning.number("threads", THREADS, 256, "parallel", "outputs of a block")

    def _step(self, d: int) -> int:
        """Distance in the input between neighbours of a window along dimension `d`: the dilation; 1 for adaptive
        pools."""
        return self.kernel.dilation[d] if self.kernel.kernel else 1

    def _body(self) -> list[str]:
        """C statements of one thread: walks the window of output `point` and stores the maximum, or the average."""
        kernel, space = self.kernel, self.space
        lines = decompose("point", space.out_sizes, space.out_names, space.index)
        for d in range(space.rank):
            lines += space.window_bounds(d)
        maximum = kernel.op == "max"
        lines.append(f"T best = {'lowest<T>()' if maximum else '(T)0'};")
        if maximum:
            lines.append("long long index = -1;")
        for d in range(space.rank):
            lines.append(f"for ({space.index} i{d} = begin{d}; i{d} < end{d}; i{d} += {self._step(d)}) {{")
            lines.append(f"if (i{d} < 0 || i{d} >= {kernel.input_size[d]}) continue;")
        body = make_emitter(space.inside, [], {})
        body.lines.append(f"const T x = (T)({body.value(kernel.value)});")
        lines += body.lines
        if maximum:
            flat = "0"
            for d in range(space.rank):
                flat = f"i{d}" if d == 0 else f"({flat}) * {kernel.input_size[d]} + i{d}"
            lines.append(f"if (x > best || x != x || index < 0) best = x, index = {flat};")
        else:
            lines.append("best += x;")
        lines += ["}"] * space.rank
        lines += [] if maximum else space.divisor()
        names = {"acc": "best", "index": "index"} if maximum else {"acc": "(best / divisor)"}
        return [*lines, *space.stores(names)]

    def print(self) -> PrintedKernel:
        """The printed kernel, with one launch."""
        kernel, space = self.kernel, self.space
        name = symbol_of(kernel)
        signature, arguments = signature_of(self.plan, [*space.found, *space.after], kernel.stores)
        points = math.prod(space.out_sizes)
        values: dict[str, object] = {
            "NAME": name,
            "PARAMETERS": signature,
            "TYPE": space.type,
            "INDEX": space.index,
            "THREADS": self.threads,
            "POINTS": points,
            "OP": {"max": "Maximum", "avg": "Average"}[kernel.op],
            "BODY": indent(self._body()),
        }
        source = fill(_KERNEL, values)
        grid = (math.ceil(points / self.threads), 1, 1)
        launch = Launch(name, grid, (self.threads, 1, 1), tuple(arguments))
        return print_launches(source, [launch], self.tuning, template="pool")


def print_pool(kernel: PoolKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a PoolKernel.

    `choices` may hold (each path reads only those that concern it):
    - "path": "points" (one thread an output) or "columns" (columns of the input first, then windows of them)
    - "threads": threads of a block
    - "steps": rows of outputs that a block takes one after the other ("columns")
    A value that is not legal for this kernel gives way to the default."""
    tuning = Tuning(choices, declares_fixed=True)
    meaning = "points: one thread an output; columns: columns of the input first, then windows of them"
    if fits_columns(kernel) and tuning.text("path", PATHS, "columns", "algorithm", meaning) == "columns":
        return print_columns(kernel, plan, tuning)
    return _Pool(kernel, plan, tuning).print()
