"""Recurrent layers on the CPU: a `RecurrentKernel` of one layer as a struct over recurrence.cpp."""

from __future__ import annotations

import math
from collections.abc import Sequence

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.contractions import gemm_code as code
from foundry.knowledge.compiler.cpu.contractions import gemm_tiles as tiling
from foundry.knowledge.compiler.cpu.space import indent
from foundry.knowledge.compiler.file.texts import fill, read_library_text
from foundry.knowledge.compiler.ir.access import reads, writes
from foundry.knowledge.compiler.ir.kernels import GATES, Load, Plan, PrintedKernel, RecurrentKernel, Tunable
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower

_PARALLEL_FLOPS = 200_000  # operations of one step; fewer are done before a team of threads has met
_CELL = {
    "lstm": (
        "const T in = math::sigmoid(own[0][l] + given[0][l]), kept = math::sigmoid(own[1][l] + given[1][l]);",
        "c = kept * c + in * math::tanh(own[2][l] + given[2][l]);",
        "return math::sigmoid(own[3][l] + given[3][l]) * math::tanh(c);",
    ),
    "gru": (
        "const T reset = math::sigmoid(own[0][l] + given[0][l]), update = math::sigmoid(own[1][l] + given[1][l]);",
        "const T next = math::tanh(given[2][l] + reset * own[2][l]);",
        "return next + update * (h - next);",
    ),
    "rnn_tanh": ("return math::tanh(own[0][l] + given[0][l]);",),
    "rnn_relu": ("return math::relu(own[0][l] + given[0][l]);",),
}

# Unnamed namespace: static members of a named one would be shared by all libraries of a process (STB_GNU_UNIQUE).
_STRUCT = """
namespace {

struct recurrence_@NAME@ {
  typedef @T@ T;
  static constexpr int VB = @VB@, GATES = @GATES@, ROWS = @ROWS@, THREADS = @THREADS@, DIRECTIONS = @DIRECTIONS@;
  static constexpr long STEPS = @STEPS@, BATCH = @BATCH@, HIDDEN = @HIDDEN@, SLICE = @SLICE@;
@MEMBERS@

  // Unit l of a vector: its sums from the state and from the input, by gate.
  template <class Sums>
  static GEMM_INLINE T cell(const Sums& own, const Sums& given, long l, T h, T& c) {
    (void)h, (void)c, (void)given;
@CELL@
  }

@READS@

  template <int D> GEMM_INLINE void store(long step, long row, long first, long count, const T* h) const {
    (void)step, (void)row, (void)first, (void)count, (void)h;
@STORE@
  }

  template <int D> GEMM_INLINE void last(long row, long first, long count, const T* h, const T* c) const {
    (void)row, (void)first, (void)count, (void)h, (void)c;
@LAST@
  }
};

}  // namespace
"""
_READ = """\
  template <int D> GEMM_INLINE T @FIELD@(@INDICES@) const {
@VALUES@
  }
"""
_FIELDS = {
    "weight": ("weight", ("row", "k")),
    "given": ("given", ("step", "row", "at")),
    "bias": ("bias", ("at",)),
    "first_h": ("h", ("row", "unit")),
    "first_c": ("c", ("row", "unit")),
}


def _print_read(kernel: RecurrentKernel, name: str) -> str:
    """C++ method `name` that returns what the cell of direction D reads at a point."""
    field, indices = _FIELDS[name]
    lines = []
    for direction, cell in enumerate(kernel.layers[0]):
        load: Load | None = getattr(cell, field)
        value = "(T)0" if load is None else f"(T)({_element(load, indices)})"
        lines.append(f"if constexpr (D == {direction}) return {value};")
    used = ", ".join(f"(void){index}" for index in indices)
    holes = {"FIELD": name, "INDICES": ", ".join(f"long {index}" for index in indices)}
    return fill(_READ, {**holes, "VALUES": indent([f"{used};", *lines], 2)})


def _element(load: Load, indices: Sequence[str]) -> str:
    """C text that reads the load's element at the index variables `indices`."""
    return code.load_text(f"b_{load.buffer}[{code.offset_by(indices)(load.view)}]", load.dtype)


def _print_store(kernel: RecurrentKernel, plan: Plan) -> list[str]:
    """C lines that store a step's hidden states; none if the kernel has no stores."""
    if not kernel.stores:
        return []
    body = code.store_lines(kernel.stores, plan, ["direction", "step", "row", "unit"])
    head = ["const long direction = D, unit = first + l;", "(void)direction;", "const T acc = h[l];"]
    return ["#pragma omp simd", "for (long l = 0; l < count; ++l) {", *(f"  {line}" for line in [*head, *body]), "}"]


def _print_last(kernel: RecurrentKernel, plan: Plan) -> list[str]:
    """C lines that store the last hidden and cell state, as far as they are wanted."""
    _, _, batch, hidden = kernel.shape
    lines = []
    for name, state in ((kernel.last_h, "h"), (kernel.last_c, "c")):
        if name:
            value = CPU_DIALECT.store(f"{state}[l]", plan.buffers[name].dtype)
            at = f"(({kernel.first} + D) * {batch}L + row) * {hidden} + first + l"
            lines.append(f"for (long l = 0; l < count; ++l) b_{name}[{at}] = {value};")
    return lines


def _list_tunables(kernel: RecurrentKernel, device: Device, lanes: int) -> tuple[Tunable, ...]:
    """The tunables of rows in registers, sequences of a task and threads, with their defaults."""
    directions, _, batch, hidden = kernel.shape
    most = max(1, (tiling.vector_registers(device) - GATES[kernel.cell] - 1) // GATES[kernel.cell])
    rows = tuple(n for n in (1, 2, 4, 8) if n <= most and n < 2 * batch)
    panels = directions * math.ceil(hidden / lanes)
    flops = 2 * directions * batch * GATES[kernel.cell] * hidden * hidden
    threads = device.cores if flops >= _PARALLEL_FLOPS else 1
    slices = tuple(dict.fromkeys([batch, *(math.ceil(batch / n) for n in (2, 4, 8, 16))]))
    wanted = max(1, math.ceil(threads / panels))
    slice_rows = min(slices, key=lambda n: abs(math.ceil(batch / n) - wanted))
    teams = tuple(
        sorted({1, *(1 << n for n in range(device.cores.bit_length()) if 1 << n < device.cores), device.cores})
    )
    return (
        Tunable("rows", rows, rows[-1], "tile", "sequences whose sums are in registers at a time"),
        Tunable(
            "slice", slices, slice_rows, "parallel", "sequences of a task; fewer, more tasks read the same weights"
        ),
        Tunable("threads", teams, threads, "parallel", "threads that share the units and meet after each step"),
    )


def print_recurrence(kernel: RecurrentKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of one recurrent layer with its stores, in one or two directions.

    `choices` may hold "rows" (sequences in registers), "slice" (sequences of a task) and "threads". A value that is not
    legal for this kernel gives way to the default. Raises CannotLower for layers in one kernel.
    """
    if len(kernel.layers) > 1:
        raise CannotLower(f"recurrence {kernel.name}: layers above each other")
    directions, steps, batch, hidden = kernel.shape
    float_type, float_bytes = tiling.element_type(kernel.dtype)
    lanes = max(1, device.vector_bytes // float_bytes)
    tunables = _list_tunables(kernel, device, lanes)
    values = tiling.pick(tunables, choices)
    written = sorted(writes(kernel))
    buffers = [*sorted(reads(kernel) - set(written)), *written]
    sizes = {"STEPS": steps, "BATCH": batch, "HIDDEN": hidden, "DIRECTIONS": directions, "GATES": GATES[kernel.cell]}
    chosen = {"ROWS": values["rows"], "SLICE": values["slice"], "THREADS": values["threads"]}
    text = fill(
        _STRUCT,
        {
            **{key: str(value) for key, value in (sizes | chosen).items()},
            "NAME": kernel.name,
            "T": float_type,
            "VB": str(lanes * float_bytes),
            "MEMBERS": indent(code.declare_members(buffers, plan, written), 1),
            "CELL": indent(_CELL[kernel.cell], 2),
            "READS": "\n".join(_print_read(kernel, name) for name in _FIELDS),
            "STORE": indent(_print_store(kernel, plan), 2),
            "LAST": indent(_print_last(kernel, plan), 2),
        },
    )
    call = [f"recurrence_{kernel.name} g;", *(f"g.b_{name} = b_{name};" for name in buffers)]
    call.append("recurrence::run(g, workspace);")
    pitch = math.ceil(hidden / lanes) * lanes
    floats = directions * pitch * (hidden * GATES[kernel.cell] + 3 * batch)
    return PrintedKernel(
        functions=text,
        shared=(read_library_text("cpu/contractions/gemm.cpp"), read_library_text("cpu/contractions/recurrence.cpp")),
        call="{\n" + indent(call, 1) + "\n}",
        template="recurrence",
        choices=values,
        tunables=tunables,
        workspace_bytes=floats * float_bytes + 64,
    )
