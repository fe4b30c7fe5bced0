"""Boxes of queries, keys and values that the copy engine brings as they lie in memory: their tensor maps, and where in
these a block's tiles lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.library.cuda.contractions.attention_space import AttentionSpace
from foundry.knowledge.library.cuda.launches import TensorMap
from foundry.knowledge.opgraph import ITEM_BYTES, DType

WIDE = 64  # elements of a box's row: 128 bytes of 16-bit numbers
_ALIGNED = 8  # elements: 16 bytes, of which the engine's addresses and strides are multiples


@dataclass(frozen=True)
class Boxes:
    """An operand of at most two dimensions of batch, as the copy engine reads it."""

    buffer: str
    dtype: DType
    offset: int  # elements
    rows: int
    head: int
    row_stride: int
    batch: tuple[tuple[int, int], ...]  # (size, stride) of its own dimensions of the batch, the innermost first
    places: tuple[str, ...]  # C text of the block's place in each of them

    def map(self, box_rows: int) -> TensorMap:
        size = ITEM_BYTES[self.dtype]
        sizes, strides = [self.head, self.rows], [self.row_stride]
        for count, stride in (*self.batch, *[(1, self.rows * self.row_stride)] * (2 - len(self.batch))):
            sizes.append(count)
            strides.append(stride)
        return TensorMap(
            self.buffer,
            self.dtype,
            tuple(sizes),
            tuple(size * stride for stride in strides),
            (WIDE, box_rows, 1, 1),
            size * self.offset,
        )

    def place(self, row: str) -> str:
        """Arguments that say which box: the one of index `box` along the head, from `row` on."""
        return ", ".join((f"box * {WIDE}", row, *self.places, *["0"] * (2 - len(self.places))))


def boxes(space: AttentionSpace, which: str) -> Boxes | None:
    """The boxes of "q", "k" or "v"; None for an operand that the copy engine cannot read."""
    kernel = space.kernel
    load, rows, head = {
        "q": (kernel.q, kernel.rows, kernel.head),
        "k": (kernel.k, kernel.columns, kernel.head),
        "v": (kernel.v, kernel.columns, kernel.value_head),
    }[which]
    if load.dtype not in ("float16", "bfloat16"):
        return None
    seen = space.spaces[which].where[load.view]
    *of_batch, of_row, of_element = seen.strides
    if rows == 1:  # as good as any
        of_row = math.ceil(head / _ALIGNED) * _ALIGNED
    if of_element != 1 or min(seen.strides) < 0 or any(n % _ALIGNED for n in (seen.offset, of_row, *of_batch)):
        return None
    found: list[tuple[int, int, str]] = []  # innermost first
    for size, stride, name in reversed(list(zip(space.batch_sizes, of_batch, space.batch_names, strict=True))):
        if not stride:
            continue
        if found and stride == found[-1][0] * found[-1][1]:
            inner, step, place = found.pop()
            found.append((size * inner, step, f"({name} * {inner} + {place})"))
        else:
            found.append((size, stride, name))
    if len(found) > 2 or not of_row:
        return None
    batch, places = tuple((size, stride) for size, stride, _ in found), tuple(f"(int){place}" for *_, place in found)
    return Boxes(load.buffer, load.dtype, seen.offset, rows, head, of_row, batch, places)
