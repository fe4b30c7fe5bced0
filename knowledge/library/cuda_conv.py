"""Convolutions in CUDA as implicit matrix products: the tiled kernel of `cuda_gemm.cu` with operands that are gathered.

acc[channel, (image, position)] = sum over (input channel, tap) of weight * input. Padding is a zero that is never
read. A transposed convolution is gathered too: each output looks for the inputs that reach it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library import cuda_launch
from foundry.knowledge.library.cuda_dialect import register
from foundry.knowledge.library.cuda_gemm import Tile, epilogue_lines, tiled_source
from foundry.knowledge.library.cuda_gemm_tiles import choose
from foundry.knowledge.library.cuda_launch import Launch
from foundry.knowledge.library.cuda_space import (
    Space,
    body_leaves,
    buffers_of,
    decompose,
    element_load,
    identifier,
    index_type,
    parameters,
)
from foundry.knowledge.library.ir import Const, ConvKernel, GemmKernel, Plan, PrintedKernel


class _Conv:
    def __init__(self, kernel: ConvKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> None:
        self.kernel, self.plan = kernel, plan
        self.rank = len(kernel.kernel)
        self.taps = math.prod(kernel.kernel)
        self.m = kernel.out_channels // kernel.groups
        self.positions = math.prod(kernel.output_size)
        self.n = kernel.batch * self.positions
        self.channels = kernel.in_channels // kernel.groups
        self.k = self.channels * self.taps
        zero = Const(0.0, kernel.dtype)
        batch = (kernel.groups,)
        shape = GemmKernel(kernel.name, batch, self.m, self.n, self.k, zero, zero, (), kernel.dtype)
        kept = {name: value for name, value in choices.items() if name != "splits"}
        tiling, tunables = choose(shape, device, kept, scalar=True)
        self.tiling = replace(tiling, splits=1)
        self.tunables = tuple(item for item in tunables if item.name != "splits")
        self.type = register(kernel.dtype)
        reach = kernel.x_offset + sum(
            abs(stride) * (size - 1)
            for stride, size in zip(
                kernel.x_strides, (kernel.batch, kernel.in_channels, *kernel.input_size), strict=True
            )
        )
        sizes = (kernel.batch, kernel.out_channels, *kernel.output_size)
        views = [leaf.view for leaf in body_leaves(kernel.stores)] + [store.view for store in kernel.stores]
        wide = reach >= 2**30 or self.k * self.m >= 2**30 or index_type(sizes, views) == "long long"
        self.index = "long long" if wide else "int"
        self.name = cuda_launch.KERNEL_PREFIX + identifier(kernel.name)

    @property
    def _group(self) -> str:
        return "group_index" if self.kernel.groups > 1 else "0"

    def _tap(self) -> list[str]:
        """k as (input channel of the group, tap along each dimension)."""
        names = ["c", *(f"t{d}" for d in range(self.rank))]
        return decompose("k", (self.channels, *self.kernel.kernel), names, self.index)

    def _weight(self, held: str) -> list[str]:
        kernel = self.kernel
        dtype = self.plan.buffers[kernel.weight].dtype
        if kernel.transposed:
            where = (
                f"(({self._group} * {self.channels} + k / {self.taps}) * {self.m} + m) * {self.taps} + k % {self.taps}"
            )
        else:
            where = f"({self._group} * {self.m} + m) * {self.k} + k"
        return [f"{held}[i].at[0] = ({self.type})({element_load(f'b_{kernel.weight}[{where}]', dtype)});"]

    def _input(self, held: str) -> list[str]:
        """One element of the unfolded input: zero in the padding and between the steps of a transposed one."""
        kernel = self.kernel
        dtype = self.plan.buffers[kernel.x].dtype
        names = ["image", *(f"p{d}" for d in range(self.rank))]
        lines = [*decompose("n", (kernel.batch, *kernel.output_size), names, self.index), *self._tap()]
        tests = []
        where = f"{kernel.x_offset} + image * {kernel.x_strides[0]}"
        where += f" + ({self._group} * {self.channels} + c) * {kernel.x_strides[1]}"
        for d in range(self.rank):
            size, stride, padding = kernel.input_size[d], kernel.stride[d], kernel.padding[d]
            dilation = kernel.dilation[d]
            if kernel.transposed:
                lines.append(f"const {self.index} s{d} = p{d} + {padding} - t{d} * {dilation};")
                lines.append(f"const {self.index} i{d} = s{d} / {stride};")
                tests.append(f"s{d} >= 0 && i{d} < {size}" + (f" && s{d} % {stride} == 0" if stride > 1 else ""))
            else:
                lines.append(f"const {self.index} i{d} = p{d} * {stride} + t{d} * {dilation} - {padding};")
                if padding or self._overhangs(d):
                    tests.append(f"i{d} >= 0 && i{d} < {size}")
            where += f" + i{d} * {kernel.x_strides[2 + d]}"
        value = f"({self.type})({element_load(f'b_{kernel.x}[{where}]', dtype)})"
        if tests:
            value = f"{' && '.join(tests)} ? {value} : ({self.type})0"
        return [*lines, f"{held}[i].at[0] = {value};"]

    def _overhangs(self, d: int) -> bool:
        kernel = self.kernel
        last = (kernel.output_size[d] - 1) * kernel.stride[d] + (kernel.kernel[d] - 1) * kernel.dilation[d]
        return last >= kernel.input_size[d]

    def _epilogue(self) -> list[str]:
        """Stores at (image, channel, position): n .. n + 3 stay in one image when positions come in fours."""
        kernel = self.kernel
        vector = 4 if kernel.output_size[-1] % 4 == 0 else 1
        names = ("image", "channel", *(f"p{d}" for d in range(self.rank)))
        sizes = (kernel.batch, kernel.out_channels, *kernel.output_size)
        views = [leaf.view for leaf in body_leaves(kernel.stores)] + [store.view for store in kernel.stores]
        space = Space(sizes, names, {view: view for view in views}, self.index)
        channel = f"const {self.index} channel = {self._group} * {self.m} + m;"
        place = [names[0], *names[2:]]
        guards = [f"m < {self.m}"] if self.m % self.tiling.tile_m else []
        if self.n % self.tiling.tile_n:
            guards.append(f"n < {self.n}")
        guard = " && ".join(guards)
        if vector == 4:
            inside = decompose("n", (kernel.batch, *kernel.output_size), place, self.index)
            lines = epilogue_lines(space, kernel.stores, self.plan, "acc[i][h * 4 + j]", 4, "", "")
            body = [channel, *inside, *lines]
        else:
            inside = decompose("(n + e)", (kernel.batch, *kernel.output_size), place, self.index)
            lines = epilogue_lines(space, kernel.stores, self.plan, "acc[i][h * 4 + e]", 1, "", "")
            each = [f"if (n + e < {self.n}) {{", *inside, *lines, "}"]
            body = [channel, "#pragma unroll", "for (int e = 0; e < 4; ++e) {", *each, "}"]
        return [f"if ({guard}) {{", *body, "}"] if guard else ["{", *body, "}"]

    def print(self) -> PrintedKernel:
        kernel, tiling = self.kernel, self.tiling
        tiles = (math.ceil(self.m / tiling.tile_m), math.ceil(self.n / tiling.tile_n))
        a = Tile("a", self.m, self.k, tiling, self.type, self.index, "k", 1, self._weight)
        b = Tile("b", self.n, self.k, tiling, self.type, self.index, "n", 1, self._input)
        found = body_leaves(kernel.stores)
        reads, writes = buffers_of(found, kernel.stores)
        reads = list(dict.fromkeys([kernel.x, kernel.weight, *reads]))
        signature, arguments = parameters(self.plan, reads, writes)
        group = [f"const int group_index = (int)blockIdx.x / {tiles[0] * tiles[1]};"] if kernel.groups > 1 else []
        steps = ("0", str(math.ceil(self.k / tiling.tile_k)))
        source = tiled_source(self.name, signature, a, b, self.index, tiles, group, steps, self._epilogue())
        grid = (tiles[0] * tiles[1] * kernel.groups, 1, 1)
        shared = tiling.shared_bytes(8 if self.type == "double" else 4)
        launch = Launch(self.name, grid, (tiling.threads, 1, 1), tuple(arguments), shared)
        chosen = {name: value for name, value in asdict(tiling).items() if name != "splits"}
        return PrintedKernel(
            functions=source,
            call=cuda_launch.encode([launch]),
            template="conv",
            choices=chosen,
            tunables=self.tunables,
            d_mem=3 if tiling.stages > 1 else 2,
            d_algo=1 if len(kernel.ops) > 1 else 0,
            d_sync=1,
        )


def print_conv(kernel: ConvKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    return _Conv(kernel, plan, device, choices).print()
