"""The iteration spaces of a pool: its input and output points, the bounds of a window, and the number it divides by."""

from __future__ import annotations

from foundry.knowledge.compiler.cuda.dialect import register_type
from foundry.knowledge.compiler.cuda.space import Space, body_leaves, index_type, make_emitter
from foundry.knowledge.compiler.ir.kernels import Plan, PoolKernel
from foundry.knowledge.compiler.ir.views import leaves


class PoolSpace:
    """A pool's spaces: `inside` of its input points, `outside` of its output points, with the leaves read in each
    (`found`, `after`). `type` is the C++ type of a window's result."""

    def __init__(self, kernel: PoolKernel, plan: Plan) -> None:
        self.kernel, self.plan = kernel, plan
        self.type = register_type(kernel.dtype)
        self.rank = len(kernel.input_size)
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

    def window_bounds(self, d: int) -> list[str]:
        """C declarations of begin<d> and end<d>: the first input position of the window along d and one past its last.
        They are not clipped to the input; dilation is left to the loop."""
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

    def divisor(self) -> list[str]:
        """The C declaration of `divisor`, the number that an average divides by: the kernel's own, or the positions of
        the window that count."""
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

    def stores(self, names: dict[str, str]) -> list[str]:
        """C statements that store a window's result. `names`: C text of the IR's "acc" (the result) and "index" (a
        maximum's position)."""
        stores = make_emitter(self.outside, [], names, "s")
        stores.store_all(self.kernel.stores, self.outside.offset, self.plan.buffers)
        return stores.lines
