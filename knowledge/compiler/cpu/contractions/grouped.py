"""Grouped matrix products on the CPU: a `GroupedKernel` over the templates gemm.cpp and gemm_grouped.cpp."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.contractions import gemm_code as code
from foundry.knowledge.compiler.cpu.contractions import gemm_tiles as tiling
from foundry.knowledge.compiler.cpu.contractions.gemm import DEPTH
from foundry.knowledge.compiler.cpu.contractions.gemm_form import Operand, choose_direction
from foundry.knowledge.compiler.cpu.space import indent
from foundry.knowledge.compiler.file.texts import fill, read_library_text
from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.kernels import Expr, GroupedKernel, Plan, PrintedKernel, Tunable
from foundry.knowledge.device import Device

_PARALLEL_FLOPS = 200_000  # fewest operations for which a parallel region saves more than it costs

_STRUCT = """
namespace {

struct gemm_@NAME@ {
  typedef @T@ T;
  static constexpr int VB = @VB@;
@CONSTANTS@
  const int32_t* starts = nullptr;
  const int32_t* order = nullptr;
@MEMBERS@

  GEMM_INLINE void a_run(long r, long column, long count, T* out) const {
@A_RUN@
  }

  GEMM_INLINE void b_run(long group, long row, long column, long count, T* out) const {
@B_RUN@
  }

  // The epilogue of one row's `columns` sums from column j0 on.
  GEMM_INLINE void store(long row, long j0, long columns, const T* sums) const {
@STORE@
  }
};

}  // namespace
"""


@dataclass(frozen=True)
class _Shape:
    """A grouped product and what its tunables depend on; `lanes` are elements of a vector register."""

    kernel: GroupedKernel
    b: Operand
    float_type: str
    float_bytes: int
    lanes: int
    threads: int
    device: Device

    @property
    def rows(self) -> int:
        """Items of a group if all are of one size."""
        return max(1, self.kernel.items // self.kernel.groups)


def print_grouped(kernel: GroupedKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a grouped matrix product. A choice that is not legal for this kernel gives way to the default.

    `choices` may hold "tile": rows x vectors of the register tile, such as "6x2"; "block_rows" (rows of a group in a
    task) and "block_panels" (column panels of B in a task).
    """
    shape = _shape(kernel, device)
    tunables = _tunables(shape)
    values = tiling.pick(tunables, choices)
    constants, b_elements = _constants(shape, values)
    text, buffers = _struct(shape, plan, constants)
    packed = f"{kernel.name}_packed"
    source = f"({shape.float_type}*)b_{packed}" if kernel.constant_b else "nullptr"
    bind = [f"gemm_{kernel.name} g;", *(f"g.b_{buffer} = b_{buffer};" for buffer in buffers)]
    order = [f"g.starts = b_{kernel.starts};", f"g.order = b_{kernel.order};"]
    call = [*bind, *order, f"gemm::run_grouped(g, {source}, workspace);"]
    own = [f"gemm_{kernel.name} g;", *(f"g.b_{buffer} = b_{buffer};" for buffer in code.loaded_buffers([kernel.b]))]
    prepare = [*own, f"gemm::prepare_grouped(g, {source});"]
    space = constants["THREADS"] * constants["A_SPACE"] + (0 if kernel.constant_b else b_elements)
    return PrintedKernel(
        functions=text,
        shared=tuple(read_library_text(f"cpu/contractions/{name}.cpp") for name in ("gemm", "gemm_grouped")),
        call="{\n" + indent(call, 1) + "\n}",
        template="gemm_grouped",
        choices=values,
        tunables=tunables,
        workspace_bytes=space * shape.float_bytes + 64,
        prepare={packed: "{\n" + indent(prepare, 1) + "\n}"} if kernel.constant_b else {},
        prepared_sizes={packed: b_elements * shape.float_bytes // 4} if kernel.constant_b else {},
        labels=("prepared_weights",) if kernel.constant_b else (),
    )


def _shape(kernel: GroupedKernel, device: Device) -> _Shape:
    """Sizes, types, vector lanes, threads and reading direction of a grouped product; one thread below
    _PARALLEL_FLOPS."""
    float_type, float_bytes = tiling.element_type(kernel.dtype)
    flops = 2 * kernel.items * kernel.n * kernel.k
    threads = max(1, device.cores) if flops >= _PARALLEL_FLOPS else 1
    lanes = max(1, device.vector_bytes // float_bytes)
    return _Shape(
        kernel,
        b=choose_direction(kernel.b, True, kernel.dtype),
        float_type=float_type,
        float_bytes=float_bytes,
        lanes=lanes,
        threads=threads,
        device=device,
    )


def _tunables(shape: _Shape) -> tuple[Tunable, ...]:
    """The tunables with their defaults."""
    kernel = shape.kernel
    tile = tiling.tile_tunable(max(shape.rows, 4), kernel.n, shape.lanes, shape.device)
    first = tiling.RegisterTile.parse(str(tile.default))
    fits = max(first.rows, tiling.L2_BYTES // 2 // (kernel.k * shape.float_bytes))
    rows = round_up(min(shape.rows, fits), first.rows)
    panels = math.ceil(kernel.n / (first.vectors * shape.lanes))
    tasks = kernel.groups * math.ceil(shape.rows / rows)
    columns = max(1, math.ceil(panels * tasks / max(tasks, 4 * shape.threads)))
    factors = [first.rows * factor for factor in (1, 2, 4, 8, 16, 32)]
    meaning = ("memory", "rows of a group gathered into L2 a task")
    return (
        tile,
        tiling.number_tunable(
            "block_rows", rows, factors, low=1, high=max(kernel.items, first.rows), aspect_meaning=meaning
        ),
        tiling.number_tunable(
            "block_panels",
            columns,
            [1, 2, 4, 8, 16],
            low=1,
            high=panels,
            aspect_meaning=("parallel", "panels of B a task; fewer, more tasks"),
        ),
    )


def _constants(shape: _Shape, values: dict[str, Choice]) -> tuple[dict[str, int], int]:
    """(template constants by name, elements of all packed B)."""
    kernel = shape.kernel
    tile = tiling.RegisterTile.parse(str(values["tile"]))
    panel = tile.vectors * shape.lanes
    panels = math.ceil(kernel.n / panel)
    rows = round_up(int(values["block_rows"]), tile.rows)
    pitch = round_up(kernel.k, shape.lanes) + shape.lanes
    constants = {
        "GROUPS": kernel.groups,
        "N": kernel.n,
        "K": kernel.k,
        "MR": tile.rows,
        "NV": tile.vectors,
        "KC": min(kernel.k, tiling.split(kernel.k, DEPTH, 8)),
        "MC": rows,
        "NC": min(int(values["block_panels"]), panels),
        "PITCH": pitch,
        "B_ALONG_N": int(shape.b.along_column),
        "PREPARED_B": int(kernel.constant_b),
        "THREADS": shape.threads,
        "A_SPACE": round_up(rows * pitch, 16),
    }
    return constants, kernel.groups * panels * panel * kernel.k


def _struct(shape: _Shape, plan: Plan, constants: dict[str, int]) -> tuple[str, list[str]]:
    """(C++ struct of the kernel, names of the buffers it points to)."""
    kernel = shape.kernel
    written = [store.buffer for store in kernel.stores]
    epilogue = code.loaded_buffers(store.value for store in kernel.stores)
    buffers = list(dict.fromkeys([*code.loaded_buffers([kernel.a, kernel.b]), *epilogue, *written]))
    store = [
        *code.declare_local_pointers(dict.fromkeys([*epilogue, *written]), plan, written),
        "#pragma omp simd",
        "for (long j = 0; j < columns; ++j) {",
        "  const long column = j0 + j;",
        "  const T acc = sums[j];",
        *("  " + line for line in code.store_lines(kernel.stores, plan, ["row", "column"])),
        "}",
    ]
    b_index = ["r = row", "c = column + e"] if shape.b.along_column else ["r = row + e", "c = column"]
    holes = {
        "NAME": kernel.name,
        "T": shape.float_type,
        "VB": str(shape.lanes * shape.float_bytes),
        "CONSTANTS": indent([f"static constexpr long {key} = {value};" for key, value in constants.items()], 1),
        "MEMBERS": indent(code.declare_members(buffers, plan, written), 1),
        "A_RUN": _run_text(kernel.a, plan, ["r", "c"], ["c = column + e"]),
        "B_RUN": _run_text(kernel.b, plan, ["group", "r", "c"], b_index),
        "STORE": indent(store, 2),
    }
    return fill(_STRUCT, holes), buffers


def _run_text(expr: Expr, plan: Plan, names: list[str], index: list[str]) -> str:
    """Statements that read one run of an operand."""
    body = code.value_lines(expr, names, "out[e]", "T", {})
    lines = [*(f"const long {text};" for text in index), *body]
    loop = ["#pragma omp simd", "for (long e = 0; e < count; ++e) {", *("  " + line for line in lines), "}"]
    return indent([*code.declare_local_pointers(code.loaded_buffers([expr]), plan, ()), *loop], 2)
