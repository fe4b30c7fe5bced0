"""Attention in CUDA: one pass with online softmax; the score matrix never leaves the registers.

`precision` is a tunable: 16-bit operands unchanged, TF32 or three products of it for float32, on tensor cores
(`attention_mma.py`). IEEE arithmetic on the ordinary units stands here and in `attention.cu`."""

from __future__ import annotations

import math
from dataclasses import replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches
from foundry.knowledge.compiler.cuda.contractions.attention_mma import print_on_tensor_cores
from foundry.knowledge.compiler.cuda.contractions.attention_space import (
    AttentionSpace,
    join_heads,
    make_attention_space,
    operands_of,
)
from foundry.knowledge.compiler.cuda.contractions.attention_tiles import LARGEST_HEAD, list_precisions
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import IEEE, PRECISION
from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT, register_type
from foundry.knowledge.compiler.cuda.launches import Launch, max_shared_bytes, symbol_of
from foundry.knowledge.compiler.cuda.space import indent, make_emitter, make_tunable, pick, pick_number
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import AttentionKernel, Plan, PrintedKernel
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower

ROWS = (1, 2, 4, 8)
WARPS = (2, 4, 8, 16)
TUNABLES = (
    make_tunable("rows", ROWS, 4, "tile", "query rows a warp keeps: each key read serves so many"),
    make_tunable("warps", WARPS, 8, "parallel", "warps that share a tile of keys and values"),
)
_PRECISION_MEANING = (
    "arithmetic of the products: ieee on the ordinary units; tf32 on tensor cores with 11 significant bits; tf32x3 "
    "three products in tf32, as accurate as float32"
)


class _Attention:
    """Prints an attention on the ordinary units. Raises CannotLower for heads that do not fit shared memory."""

    def __init__(self, space: AttentionSpace, device: Device, choices: dict[str, Choice]) -> None:
        self.space, self.kernel = space, space.kernel
        kernel = space.kernel
        self.type = register_type(kernel.dtype)
        item_bytes = 8 if self.type == "double" else 4
        self.rows = pick_number(choices, "rows", ROWS, 4 if kernel.value_head <= 128 else 2)
        self.warps = pick_number(choices, "warps", WARPS, 8)
        self.shared_bytes = item_bytes * (
            32 * (kernel.head + 1 + kernel.value_head) + self.warps * self.rows * kernel.head
        )
        if self.shared_bytes > max_shared_bytes(device.arch) or kernel.value_head > 512:
            raise CannotLower(f"attention {kernel.name}: heads of {kernel.head} and {kernel.value_head} are too large")

    def _batch(self, tiles: int) -> list[str]:
        """C statements that define the block's indices of the batch; [] without a batch. `tiles`: blocks of one batch
        element."""
        if not self.space.batch_sizes:
            return []
        return [f"const int batch = (int)blockIdx.x / {tiles};", *self.space.place("batch")]

    def _mask(self) -> list[str]:
        """C statements that add the mask to score[r]; [] without a mask."""
        if self.kernel.mask is None:
            return []
        body = make_emitter(self.space.spaces["mask"], [], {})
        value = body.value(self.kernel.mask)
        return [*body.lines, f"score[r] += ({self.type})({value});"]

    def print(self) -> PrintedKernel:
        """The printed kernel, with one launch."""
        kernel = self.kernel
        name = symbol_of(kernel)
        signature, arguments = self.space.signature(operands_of(kernel))
        per_block = self.warps * self.rows
        tiles = math.ceil(kernel.rows / per_block)
        end = f"math::minimum(COLUMNS, first_row + {per_block})" if kernel.causal else "COLUMNS"
        values: dict[str, object] = {
            "NAME": name,
            "PARAMETERS": signature,
            "TYPE": self.type,
            "INDEX": self.space.index,
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
            "LOAD_Q": self.space.leaf("q", kernel.q),
            "LOAD_K": self.space.leaf("k", kernel.k),
            "LOAD_V": self.space.leaf("v", kernel.v),
            "MASK": indent(self._mask(), 4),
            "CAUSAL": " || column > row" if kernel.causal else "",
            "END": end,
            "NONE": "total[r]" if kernel.empty_rows == "nan" else f"({self.type})1",
            "STORE": indent(self.space.store("result"), 4),
        }
        source = fill(read_library_text("cuda/contractions/attention.cu"), values)
        grid = (tiles * self.space.batch, 1, 1)
        launch = Launch(name, grid, (32 * self.warps, 1, 1), tuple(arguments), self.shared_bytes)
        return PrintedKernel(
            functions=source,
            call=launches.encode([launch]),
            template="attention",
            choices={"rows": self.rows, "warps": self.warps},
            tunables=TUNABLES,
        )


def print_attention(kernel: AttentionKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of an attention. Raises CannotLower for heads that do not fit shared memory or registers.

    `choices` may hold:
    - "precision": arithmetic of the products
    - "warps": warps that share a tile of keys
    - "rows": query rows that a warp keeps (ordinary units)
    - "path": "mma" or "turns" (tensor cores; the rest too)
    - "warp_rows": query rows of a warp
    - "keys": keys of a tile
    - "stages": tiles in flight
    - "splits": parts of the keys that different blocks take
    - "in_turn", "lazy", "stay", "pass_by", "shared_mask": 0 or 1, for the path "turns"
    A value that is not legal for this kernel gives way to the default."""
    kernel = join_heads(kernel)
    allowed = list_precisions(kernel, plan, device.arch)
    precision = str(pick(choices, PRECISION, allowed, allowed[0]))
    space = make_attention_space(kernel, plan)
    if precision == IEEE:
        printed = _Attention(space, device, choices).print()
    elif max(kernel.head, kernel.value_head) > LARGEST_HEAD:
        raise CannotLower(f"attention {kernel.name}: heads of {kernel.head} and {kernel.value_head} are too large")
    else:
        printed = print_on_tensor_cores(space, precision, device, choices)
    if len(allowed) == 1:
        return printed
    way = make_tunable(PRECISION, allowed, allowed[0], PRECISION, _PRECISION_MEANING)
    return replace(printed, choices={PRECISION: precision, **printed.choices}, tunables=(way, *printed.tunables))
