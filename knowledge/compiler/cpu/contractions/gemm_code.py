"""C++ text shared by the contraction printers: views, pointers, runs of an operand, and the epilogue of a tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from foundry.knowledge.compiler.ir.kernels import Expr, Iota, Plan, Store, View
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, LoadFn, affine, loader
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.opgraph import DType


def loaded_buffers(exprs: Iterable[Expr]) -> list[str]:
    """Names of the buffers that the expressions read, in order of appearance."""
    found = [leaf.buffer for leaf in leaves(exprs) if not isinstance(leaf, Iota)]
    return list(dict.fromkeys(found))


def split_index(flat: str, sizes: Sequence[int], names: Sequence[str]) -> list[str]:
    """C++ declarations of `names`: the row-major indices of the flat index `flat` over `sizes`."""
    lines = []
    inner = math.prod(sizes)
    for position, (size, name) in enumerate(zip(sizes, names, strict=True)):
        inner //= size
        text = flat if inner == 1 else f"{flat} / {inner}"
        lines.append(f"const long {name} = {text if position == 0 else f'({text}) % {size}'};")
        lines.append(f"(void){name};")
    return lines


def offset_by(names: Sequence[str]) -> Callable[[View], str]:
    """A function that gives the C text of a view's offset in elements at the index variables `names`."""
    return lambda view: affine(view.offset, zip(view.strides, names, strict=True))


def leaf_loader(names: Sequence[str]) -> LoadFn:
    """A function that gives the C text of a load at the index variables `names`."""
    return loader(CPU_DIALECT, offset_by(names))


def storage_type(dtype: DType) -> str:
    """C type of an element in memory."""
    return CPU_DIALECT.storage[dtype]


def load_text(text: str, dtype: DType) -> str:
    """C text of a stored element's value in a register."""
    return CPU_DIALECT.load(text, dtype)


def declare_members(buffers: Iterable[str], plan: Plan, written: Iterable[str]) -> list[str]:
    """C++ declarations of a struct's pointers to the buffers; those that are not `written` are const."""
    writes = set(written)
    types = CPU_DIALECT.storage
    return [
        f"{'' if name in writes else 'const '}{types[plan.buffers[name].dtype]}* b_{name} = nullptr;"
        for name in buffers
    ]


def declare_local_pointers(buffers: Iterable[str], plan: Plan, written: Iterable[str]) -> list[str]:
    """C++ declarations of local copies of a struct's pointers, which the compiler may keep in registers. Buffers that
    are only read do not alias the stores."""
    writes = set(written)
    types = CPU_DIALECT.storage
    lines = []
    for name in buffers:
        text = types[plan.buffers[name].dtype]
        if name in writes:
            lines.append(f"{text}* b_{name} = this->b_{name};")
        else:
            lines.append(f"const {text}* __restrict__ b_{name} = this->b_{name};")
    return lines


def store_lines(stores: Sequence[Store], plan: Plan, names: Sequence[str], acc: str = "acc") -> list[str]:
    """C++ statements that store every value at the point `names`, with the accumulator in the variable `acc`."""
    emitter = Emitter(CPU_DIALECT, leaf_loader(names), {"acc": acc})
    emitter.store_all(stores, offset_by(names), plan.buffers)
    return emitter.lines


def value_lines(expr: Expr, names: Sequence[str], target: str, cast: str, values: dict[str, str]) -> list[str]:
    """C++ statements that assign `expr` at the point `names` to `target`, as C type `cast`. `values`: C texts of named
    values."""
    emitter = Emitter(CPU_DIALECT, leaf_loader(names), values)
    text = emitter.value(expr)
    return [*emitter.lines, f"{target} = ({cast})({text});"]
