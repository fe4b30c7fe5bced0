"""Queries, keys, values and masks that TMA brings in boxes: their tensor maps, and the coordinates of a block's
tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda.contractions.attention_space import AttentionSpace, masks_of
from foundry.knowledge.compiler.cuda.launches import TensorMap
from foundry.knowledge.compiler.ir.kernels import Load
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.opgraph import ITEM_BYTES, DType

ROW_BYTES = 128  # bytes of a box's row
_ALIGNED_BYTES = 16  # the engine's addresses and strides are multiples of it


@dataclass(frozen=True)
class Boxes:
    """An operand of at most two dimensions of batch, as TMA reads it. Strides and `offset` are in elements."""

    buffer: str
    dtype: DType
    offset: int  # elements
    rows: int
    columns: int
    row_stride: int
    batch: tuple[tuple[int, int], ...]  # (size, stride) of its own dimensions of the batch, the innermost first
    places: tuple[str, ...]  # C text of the block's place in each of them

    @property
    def wide(self) -> int:
        """Elements of a box's row."""
        return ROW_BYTES // ITEM_BYTES[self.dtype]

    def tensor_map(self, box_rows: int) -> TensorMap:
        """The tensor map whose boxes have `box_rows` rows of 128 bytes."""
        size = ITEM_BYTES[self.dtype]
        sizes, strides = [self.columns, self.rows], [self.row_stride]
        for count, stride in (*self.batch, *[(1, self.rows * self.row_stride)] * (2 - len(self.batch))):
            sizes.append(count)
            strides.append(stride)
        return TensorMap(
            self.buffer,
            self.dtype,
            tuple(sizes),
            stride_bytes=tuple(size * stride for stride in strides),
            box=(self.wide, box_rows, 1, 1),
            offset_bytes=size * self.offset,
        )

    def place(self, row: str, column: str = "") -> str:
        """C text of the coordinates of box number `box` along a row, counted from `row` and `column` (C texts)."""
        along = f"{column} + box * {self.wide}" if column else f"box * {self.wide}"
        return ", ".join((along, row, *self.places, *["0"] * (2 - len(self.places))))


def find_boxes(space: AttentionSpace, which: str) -> Boxes | None:
    """The boxes of "q", "k", "v" or "mask" for TMA; None for an operand that TMA cannot read."""
    kernel = space.kernel
    masks = leaves(masks_of(kernel))
    load, rows, columns = {
        "q": (kernel.q, kernel.rows, kernel.head),
        "k": (kernel.k, kernel.columns, kernel.head),
        "v": (kernel.v, kernel.columns, kernel.value_head),
        "mask": (masks[0] if len(masks) == 1 else None, kernel.rows, kernel.columns),
    }[which]
    kinds = ("float16", "bfloat16", *(("float32", "bool") if which == "mask" else ()))
    if not isinstance(load, Load) or load.dtype not in kinds:
        return None
    aligned = _ALIGNED_BYTES // ITEM_BYTES[load.dtype]
    seen = space.spaces[which].where[load.view]
    *of_batch, of_row, of_element = seen.strides
    if rows == 1:  # as good as any
        of_row = math.ceil(columns / aligned) * aligned
    if of_element != 1 or min(seen.strides) < 0 or any(n % aligned for n in (seen.offset, of_row, *of_batch)):
        return None
    found = _merged(list(zip(space.batch_sizes, of_batch, space.batch_names, strict=True)))
    if len(found) > 2 or not of_row:
        return None
    batch, places = tuple((size, stride) for size, stride, _ in found), tuple(f"(int){place}" for *_, place in found)
    return Boxes(
        load.buffer, load.dtype, seen.offset, rows=rows, columns=columns, row_stride=of_row, batch=batch, places=places
    )


def _merged(dimensions: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """(size, stride, C text of the index) of a batch's dimensions, the innermost first.

    Those of stride 0 are left out, and neighbours that one stride can walk are merged."""
    found: list[tuple[int, int, str]] = []
    for size, stride, name in reversed(dimensions):
        if not stride:
            continue
        if found and stride == found[-1][0] * found[-1][1]:
            inner, step, place = found.pop()
            found.append((size * inner, step, f"({name} * {inner} + {place})"))
        else:
            found.append((size, stride, name))
    return found
