"""The first elements of each row in order (top-k) in CUDA. A block finds the last of them by its digits, gathers all of
them and sorts them."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.dialect import register_type
from foundry.knowledge.compiler.cuda.launches import Launch, symbol_of
from foundry.knowledge.compiler.cuda.printed import print_launches
from foundry.knowledge.compiler.cuda.space import (
    LARGEST_INT,
    Space,
    decompose,
    indent,
    index_type,
    make_emitter,
    signature_of,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel, SelectKernel
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import ITEM_BYTES

THREADS = (32, 64, 128, 256, 512, 1024)
_USUAL_THREADS = (
    (1024, 32),
    (4096, 128),
    (8192, 256),
    (16384, 512),
)  # (elements of the longest row, threads that were the fastest for it on an H100)
_ORDERS = {"first": "FIRST", "as in topk": "FEW", "as in unsorted topk": "UNSORTED"}
_FEW = 32  # elements in order; up to so many, PyTorch's topk does not keep the order of equal ones
_LIST_BYTES = 32 << 10  # bytes of the entries that a block sorts
_SHARED_BYTES = 46 << 10  # bytes of entries and keys: every device has 48 KB; counters take the rest

_KERNEL = """\
// Elements number @FIRST@ to @COUNT@ of each of @ROWS@ rows of @LENGTH@, in order.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    const @INDEX@ row = blockIdx.x;
@ROW@
    const auto value = [&](@INDEX@ i) -> T {
@VALUE@
    };
    const auto emit = [&](@INDEX@ r, long long index) {
        const T acc = value((@INDEX@)index);
@STORES@
    };
    selecting::select<T, @LARGEST@, @ORDER@, @THREADS@, @LIST@, @STAGED@>(value, emit, @LENGTH@, @FIRST@, @COUNT@);
}
"""


def longest_list(wide: bool) -> int:
    """Most elements that a block can put in order; `wide`: elements of 64 bits."""
    return _LIST_BYTES // (16 if wide else 8)


def print_select(kernel: SelectKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a SelectKernel.

    `choices` may hold "threads", those of a block, which has one row. A value that is not legal gives way to the
    default. Raises CannotLower for 2^30 rows or elements of one, and for more elements in order than a block holds."""
    wide = ITEM_BYTES[kernel.dtype] == 8
    rows, wanted = math.prod(kernel.outer), kernel.count - kernel.first
    size = 1 if wanted == 1 else 1 << (kernel.count - 1).bit_length()
    order = _ORDERS[kernel.ties]
    if order == "FEW":
        order, size = ("FIRST", size) if kernel.count > _FEW or size == 1 else (order, _FEW)
    if max(rows, kernel.length) > LARGEST_INT // 2 or size > longest_list(wide):
        raise CannotLower(f"select {kernel.name}: too many rows, or elements in order")
    default = next((threads for longest, threads in _USUAL_THREADS if kernel.length <= longest), THREADS[-1])
    tuning = Tuning(choices, declares_fixed=True)
    meaning = "threads that share a row: more for long rows, fewer let more rows run side by side"
    threads = tuning.number("threads", THREADS, default, "parallel", meaning)
    held = kernel.length * (8 if wide else 4)
    staged = kernel.length if held + size * (16 if wide else 8) <= _SHARED_BYTES else 0
    found = leaves([kernel.value, *(store.value for store in kernel.stores)])
    signature, arguments = signature_of(plan, found, kernel.stores)
    name = symbol_of(kernel)
    values = {
        "NAME": name,
        "PARAMETERS": signature,
        "TYPE": register_type(kernel.dtype),
        "ROWS": rows,
        "FIRST": kernel.first,
        "COUNT": kernel.count,
        "LENGTH": kernel.length,
        "THREADS": threads,
        "LARGEST": "true" if kernel.largest else "false",
        "ORDER": f"selecting::{order}",
        "LIST": size,
        "STAGED": staged,
        **_texts(kernel, plan),
    }
    launch = Launch(name, (rows, 1, 1), (threads, 1, 1), tuple(arguments))
    text = fill(_KERNEL, values)
    return print_launches(text, [launch], tuning, template="select", shared=["rows/select.cuh"])


def _texts(kernel: SelectKernel, plan: Plan) -> dict[str, str]:
    """C statements for the holes of the kernel: they find a row, return its element i, and store element r of those
    found."""
    outer = tuple(f"o{d}" for d in range(len(kernel.outer)))
    inside, after = (*kernel.outer, kernel.length), (*kernel.outer, kernel.count - kernel.first)
    own = [leaf.view for leaf in leaves([kernel.value])]
    later = [leaf.view for leaf in leaves(store.value for store in kernel.stores)]
    later += [store.view for store in kernel.stores]
    index = "int" if {index_type(inside, own), index_type(after, later)} == {"int"} else "long long"
    places = Space(after, (*outer, "r"), {view: view for view in later}, index)
    value = make_emitter(Space(inside, (*outer, "i"), {view: view for view in own}, index), [], {})
    text = value.value(kernel.value)
    stores = make_emitter(places, [], {"acc": "acc", "index": "index"}, prefix="s")
    stores.store_all(kernel.stores, places.offset, plan.buffers)
    return {
        "INDEX": index,
        "ROW": indent(decompose("row", kernel.outer, outer, index)),
        "VALUE": indent([*value.lines, f"return {text};"], 2),
        "STORES": indent(stores.lines, 2),
    }
