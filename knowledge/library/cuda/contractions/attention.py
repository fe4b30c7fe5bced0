"""Attention in CUDA: one pass with online softmax, the score matrix never leaves the registers.

Arithmetic in float32 on the ordinary units (tensor cores are not used yet); the kernel stands in `attention.cu`.
"""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.library.cuda import launches
from foundry.knowledge.library.cuda.dialect import CUDA_DIALECT, register
from foundry.knowledge.library.cuda.launches import Launch, max_shared_bytes
from foundry.knowledge.library.cuda.space import (
    Space,
    body_leaves,
    buffers_of,
    collapse,
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
from foundry.knowledge.library.file.texts import read_library_text
from foundry.knowledge.library.ir.kernels import AttentionKernel, Expr, Plan, PrintedKernel, View

ROWS = (1, 2, 4, 8)
WARPS = (2, 4, 8, 16)
TUNABLES = (
    tunable("rows", ROWS, 4, "tile", "query rows a warp keeps: each key read serves so many"),
    tunable("warps", WARPS, 8, "parallel", "warps that share a tile of keys and values"),
)


class _Attention:
    def __init__(self, kernel: AttentionKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> None:
        self.kernel, self.plan = kernel, plan
        self.type = register(kernel.dtype)
        item_bytes = 8 if self.type == "double" else 4
        self.rows = number(choices, "rows", ROWS, 4 if kernel.value_head <= 128 else 2)
        self.warps = number(choices, "warps", WARPS, 8)
        self.shared_bytes = item_bytes * (
            32 * (kernel.head + 1 + kernel.value_head) + self.warps * self.rows * kernel.head
        )
        if self.shared_bytes > max_shared_bytes(device.arch) or kernel.value_head > 512:
            raise CannotLower(f"attention {kernel.name}: heads of {kernel.head} and {kernel.value_head} are too large")
        masks: list[Expr] = [kernel.mask] if kernel.mask is not None else []
        groups = {
            "q": [kernel.q.view],
            "k": [kernel.k.view],
            "v": [kernel.v.view],
            "mask": [leaf.view for leaf in leaves(masks)],
            "out": [leaf.view for leaf in body_leaves(kernel.stores)] + [store.view for store in kernel.stores],
        }
        views = [view for group in groups.values() for view in group]
        count = len(kernel.batch)
        self.batch_sizes, strides = collapse(kernel.batch, [view.strides[:count] for view in views])
        self.batch_names = tuple(f"g{d}" for d in range(len(self.batch_sizes)))
        moved = [View(v.offset, (*s, *v.strides[count:])) for v, s in zip(views, strides, strict=True)]
        columns, rows = kernel.columns, kernel.rows
        self.spaces: dict[str, Space] = {}
        at = 0
        extents = {
            "q": ((rows, kernel.head), ("row", "d")),
            "k": ((columns, kernel.head), ("column", "d")),
            "v": ((columns, kernel.value_head), ("column", "d")),
            "mask": ((rows, columns), ("row", "column")),
            "out": ((rows, kernel.value_head), ("row", "d")),
        }
        for name, group in groups.items():
            sizes, names = extents[name]
            where = dict(zip(group, moved[at : at + len(group)], strict=True))
            at += len(group)
            shape = (*self.batch_sizes, *sizes)
            self.spaces[name] = Space(shape, (*self.batch_names, *names), where, index_type(shape, where.values()))
        kinds = [space.index for space in self.spaces.values()]
        self.index = "long long" if "long long" in kinds else "int"

    def _leaf(self, which: str, expr: Expr) -> str:
        return emitter(self.spaces[which], [], {}).value(expr)

    def _batch(self, tiles: int) -> list[str]:
        """The block's indices of the batch, where there is one; `tiles`: blocks of one batch element."""
        if not self.batch_sizes:
            return []
        found = f"const int batch = (int)blockIdx.x / {tiles};"
        return [found, *decompose("batch", self.batch_sizes, self.batch_names, self.index)]

    def _mask(self) -> list[str]:
        if self.kernel.mask is None:
            return []
        body = emitter(self.spaces["mask"], [], {})
        value = body.value(self.kernel.mask)
        return [*body.lines, f"score[r] += ({self.type})({value});"]

    def _store(self) -> list[str]:
        body = emitter(self.spaces["out"], [], {"acc": "result"}, "s")
        body.reserve(store.value for store in self.kernel.stores)
        for store in self.kernel.stores:
            body.store(store, self.spaces["out"].offset, self.plan.buffers[store.buffer].dtype)
        return body.lines

    def print(self) -> PrintedKernel:
        kernel = self.kernel
        name = launches.KERNEL_PREFIX + identifier(kernel.name)
        read: list[Expr] = [kernel.q, kernel.k, kernel.v]
        read += [kernel.mask] if kernel.mask is not None else []
        reads, writes = buffers_of([*leaves(read), *body_leaves(kernel.stores)], kernel.stores)
        signature, arguments = parameters(self.plan, reads, writes)
        per_block = self.warps * self.rows
        tiles = math.ceil(kernel.rows / per_block)
        end = f"math::minimum(COLUMNS, first_row + {per_block})" if kernel.causal else "COLUMNS"
        values: dict[str, object] = {
            "NAME": name,
            "PARAMETERS": signature,
            "TYPE": self.type,
            "INDEX": self.index,
            "ROWS": self.rows,
            "WARPS": self.warps,
            "THREADS": 32 * self.warps,
            "HEAD": kernel.head,
            "VALUE": kernel.value_head,
            "COLUMNS": kernel.columns,
            "QUERIES": kernel.rows,
            "TILES": tiles,
            "BATCH": indent(self._batch(tiles)),
            "SCALE": CUDA_DIALECT.constant(kernel.scale, kernel.dtype),
            "LOAD_Q": self._leaf("q", kernel.q),
            "LOAD_K": self._leaf("k", kernel.k),
            "LOAD_V": self._leaf("v", kernel.v),
            "MASK": indent(self._mask(), 4),
            "CAUSAL": " || column > row" if kernel.causal else "",
            "END": end,
            "NONE": "total[r]" if kernel.empty_rows == "nan" else f"({self.type})1",
            "STORE": indent(self._store(), 4),
        }
        source = fill(
            read_library_text("cuda/contractions/attention.cu"), {key: str(value) for key, value in values.items()}
        )
        grid = (tiles * math.prod(kernel.batch), 1, 1)
        launch = Launch(name, grid, (32 * self.warps, 1, 1), tuple(arguments), self.shared_bytes)
        return PrintedKernel(
            functions=source,
            call=launches.encode([launch]),
            template="attention",
            choices={"rows": self.rows, "warps": self.warps},
            tunables=TUNABLES,
            d_mem=2,
            d_algo=2,
            d_sync=2,
        )


def print_attention(kernel: AttentionKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """Raises CannotLower for heads that do not fit shared memory or registers."""
    return _Attention(kernel, plan, device, choices).print()
