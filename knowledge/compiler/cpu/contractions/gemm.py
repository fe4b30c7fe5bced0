"""Matrix products on the CPU: a `GemmKernel` as a struct over the templates gemm.cpp and gemm_skinny.cpp.

There are two algorithms. "packed": register tiles over packed panels of B, blocked for the caches. "streamed": a few
rows of A against a B that is read once in place. Accuracy: float32 FMA sums restart every `block_k`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.contractions import gemm_code as code
from foundry.knowledge.compiler.cpu.contractions import gemm_tiles as tiling
from foundry.knowledge.compiler.cpu.contractions.gemm_form import SKINNY_ROWS, Operand, choose_direction, to_canonical
from foundry.knowledge.compiler.cpu.space import indent, page_advice
from foundry.knowledge.compiler.file.texts import fill, read_library_text
from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.kernels import (
    GemmKernel,
    Plan,
    PrintedKernel,
    Tunable,
    View,
)
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import DType

DEPTH = 192  # default block_k: sums restart often enough for smaller errors than a vendor library's
WITH_PAIRS = "#define GEMM_PAIRS"  # line before the templates if a kernel multiplies pairs of bfloat16
_STREAMED_COLUMNS = 1024
_PARALLEL_FLOPS = 200_000  # operations of a kernel; for fewer a parallel region costs more than it saves
_FLOATS: dict[str, DType] = {"float": "float32", "double": "float64", "int64_t": "int64", "int32_t": "int32"}


@dataclass(frozen=True)
class _Shape:
    """A canonical product and what its tunables depend on; `lanes` are elements of a vector register."""

    kernel: GemmKernel
    a: Operand
    b: Operand
    float_type: str
    float_bytes: int
    lanes: int
    b_batched: bool
    threads: int
    device: Device

    @property
    def batch(self) -> int:
        """Number of products."""
        return math.prod(self.kernel.batch)

    @property
    def flops(self) -> int:
        """Floating-point operations of all products."""
        return 2 * self.batch * self.kernel.m * self.kernel.n * self.kernel.k


def _describe_shape(kernel: GemmKernel, device: Device) -> _Shape:
    """The product in canonical form, with its C type, vector lanes and threads on `device`; small ones get one
    thread."""
    kernel = to_canonical(kernel)
    float_type, float_bytes = tiling.element_type(kernel.dtype)
    a = choose_direction(kernel.a, True, _FLOATS[float_type])
    b = choose_direction(kernel.b, True, _FLOATS[float_type])
    batched = any(any(leaf.view.strides[:-2]) for leaf in leaves([kernel.b]))
    flops = 2 * math.prod(kernel.batch) * kernel.m * kernel.n * kernel.k
    threads = max(1, device.cores) if flops >= _PARALLEL_FLOPS else 1
    lanes = max(1, device.vector_bytes // float_bytes)
    return _Shape(
        kernel,
        a,
        b,
        float_type=float_type,
        float_bytes=float_bytes,
        lanes=lanes,
        b_batched=batched,
        threads=threads,
        device=device,
    )


def _algorithm_tunable(shape: _Shape) -> Tunable:
    """The tunable "algorithm". "streamed" is legal for few rows of A, and then the default unless B is a constant
    weight of at least one vector's columns and A has several rows."""
    kernel = shape.kernel
    values: tuple[str, ...] = ("packed",)
    default = "packed"
    if kernel.m <= SKINNY_ROWS:
        values = ("packed", "streamed")
        default = "packed" if kernel.constant_b and shape.lanes <= kernel.n and kernel.m > 1 else "streamed"
    return Tunable(
        "algorithm", values, default, "algorithm", "packed tiles reuse B from cache; streamed reads it once in place"
    )


def _packed_tunables(shape: _Shape) -> tuple[Tunable, ...]:
    """The tunables of the packed algorithm with their defaults."""
    kernel = shape.kernel
    tile = tiling.tile_tunable(kernel.m, kernel.n, shape.lanes, shape.device)
    first = tiling.RegisterTile.parse(str(tile.default))
    depth = min(kernel.k, tiling.split(kernel.k, DEPTH, 8))
    found = [
        tile,
        tiling.number_tunable(
            "block_k",
            depth,
            [128, 192, 256, 384, 512],
            low=1,
            high=kernel.k,
            aspect_meaning=("memory", "elements of k in the packed panels that stay in L2"),
        ),
    ]
    row_default, panel_default = _choose_blocks(shape, first, depth)
    panels = math.ceil(kernel.n / (first.vectors * shape.lanes))
    rows = [first.rows * factor for factor in (1, 2, 4, 8, 16, 32)]
    found.append(
        tiling.number_tunable(
            "block_rows", row_default, rows, 1, kernel.m, aspect_meaning=("memory", "rows of A reused from L2 a task")
        )
    )
    found.append(
        tiling.number_tunable(
            "block_panels",
            panel_default,
            [1, 2, 4, 8, 16],
            1,
            panels,
            aspect_meaning=("parallel", "panels of B a task; fewer, more tasks"),
        )
    )
    found.append(
        Tunable("order", ("panels_outer", "rows_outer"), "panels_outer", "tile", "which operand stays in L1 in a task")
    )
    found += _packing_tunables(shape, first)
    found.append(
        tiling.number_tunable(
            "prefetch",
            0,
            [0, 4, 8, 16],
            0,
            16,
            aspect_meaning=("memory", "rows of B fetched ahead; 0 leaves it to hardware"),
        )
    )
    return (*found, *_thread_tunables(shape))


def _packing_tunables(shape: _Shape, tile: tiling.RegisterTile) -> list[Tunable]:
    """The tunables "pack_a" and "pack_b": "yes" copies the blocks of an operand that could be read in place."""
    found = []
    if shape.a.pointer is not None:
        default = "yes" if _strides_hurt(shape) else "no"
        found.append(Tunable("pack_a", ("no", "yes"), default, "memory", "copy A's block into L2, or read it in place"))
    if shape.b.pointer is not None and shape.b.along_column and not shape.kernel.constant_b:
        few_rows = shape.kernel.m <= 4 * tile.rows
        found.append(
            Tunable(
                "pack_b", ("no", "yes"), "no" if few_rows else "yes", "memory", "copy B into panels, or read in place"
            )
        )
    return found


def _thread_tunables(shape: _Shape) -> list[Tunable]:
    """Tunables for the division of work among threads; [] for one thread."""
    if shape.threads == 1:
        return []
    found = [Tunable("schedule", ("dynamic", "static"), "dynamic", "parallel", "balance of tasks against their order")]
    if shape.batch > 1:
        is_even = shape.batch >= 2 * shape.threads or shape.batch % shape.threads == 0
        default = "batch" if is_even else "tiles"
        found.append(
            Tunable("parallel", ("batch", "tiles"), default, "parallel", "threads share one product or take whole ones")
        )
    return found


def _strides_hurt(shape: _Shape) -> bool:
    """True if A should be packed: its rows share few cache sets (2 KiB apart), or it is transposed."""
    assert shape.a.pointer is not None
    row_stride = shape.a.pointer.view.strides[-2]
    if not shape.a.along_column:
        return True
    return shape.kernel.m > 64 and row_stride * shape.float_bytes % 2048 == 0


def _choose_blocks(shape: _Shape, tile: tiling.RegisterTile, depth: int) -> tuple[int, int]:
    """(rows, panels) of one task: A's block takes at most half of L2; about four tasks a thread if the rows allow."""
    kernel = shape.kernel
    panels = math.ceil(kernel.n / (tile.vectors * shape.lanes))
    rows = tiling.split(kernel.m, max(tile.rows, tiling.L2_BYTES // 2 // (depth * shape.float_bytes)), tile.rows)
    wanted = math.ceil(4 * shape.threads / shape.batch) if shape.threads > 1 else 1
    while wanted > math.ceil(kernel.m / rows) and rows > 8 * tile.rows:
        rows = tiling.split(kernel.m, rows - tile.rows, tile.rows)
    column_blocks = math.ceil(wanted / math.ceil(kernel.m / rows))
    return min(rows, round_up(kernel.m, tile.rows)), max(1, math.ceil(panels / column_blocks))


def _streamed_tunables(shape: _Shape) -> tuple[Tunable, ...]:
    """The tunables of the streamed algorithm with their defaults."""
    kernel, threads = shape.kernel, shape.threads
    columns = _STREAMED_COLUMNS if shape.b.along_column else 64
    while columns > 64 and math.ceil(kernel.n / columns) * shape.batch < 2 * threads:
        columns //= 2
    blocks = math.ceil(kernel.n / columns) * shape.batch
    splits = 1 if blocks >= threads else min(math.ceil(2 * threads / blocks), max(1, kernel.k // 512))
    deepest = max(1, kernel.k // 256)
    return (
        tiling.number_tunable(
            "block_columns",
            columns,
            [16, 64, 256, 512, 1024, 2048],
            1,
            2048,
            aspect_meaning=("parallel", "columns of a task; fewer, more tasks"),
        ),
        tiling.number_tunable(
            "splits",
            splits,
            [1, 2, 4, 8, 16],
            1,
            deepest,
            aspect_meaning=("parallel", "parts of k summed in parallel, then added"),
        ),
    )


# Unnamed namespace: static members of a named one would be shared by all libraries of a process (STB_GNU_UNIQUE).
_STRUCT = """
namespace {

struct gemm_@NAME@ {
  typedef @T@ T;
  static constexpr int VB = @VB@;
@CONSTANTS@
@MEMBERS@

  GEMM_INLINE void a_run(long batch, long row, long column, long count, T* out) const {
@A_RUN@
  }

  GEMM_INLINE void b_run(long batch, long row, long column, long count, T* out) const {
@B_RUN@
  }
@POINTERS@
  // The epilogue of rows x columns sums at (i0, j0).
  GEMM_INLINE void store(long batch, long i0, long rows, long j0, long columns, const T* sums, long pitch) const {
@STORE_HEAD@
    for (long i = 0; i < rows; ++i) {
      const long row = i0 + i;
@STORE_ROW@
    }
  }
};

}  // namespace
"""


def _batch_names(kernel: GemmKernel) -> list[str]:
    """C names of the batch indices."""
    return [f"d{index}" for index in range(len(kernel.batch))]


def _run_text(kernel: GemmKernel, source: Operand, plan: Plan) -> str:
    """C++ statements that read `count` neighbours of an operand into `out`."""
    names = [*_batch_names(kernel), "r", "c"]
    head = code.split_index("batch", kernel.batch, _batch_names(kernel))
    head += code.declare_local_pointers(code.loaded_buffers([source.expr]), plan, ())
    index = ["const long r = row;", "const long c = column + e;"]
    if not source.along_column:
        index = ["const long r = row + e;", "const long c = column;"]
    body = code.value_lines(source.expr, names, "out[e]", "T", {})
    loop = ["#pragma omp simd", "for (long e = 0; e < count; ++e) {", *("  " + line for line in [*index, *body]), "}"]
    return indent([*head, *loop], 2)


def _pointer_text(kernel: GemmKernel, name: str, source: Operand) -> str:
    """C++ text of the method `name` that points to an operand's matrix; "" if the operand is no plain memory."""
    if source.pointer is None:
        return ""
    view = source.pointer.view
    batch = View(view.offset, view.strides[:-2])
    names = _batch_names(kernel)
    lines = [*code.split_index("batch", kernel.batch, names)]
    lines.append(f"return b_{source.pointer.buffer} + {code.offset_by(names)(batch)};")
    return f"\n  GEMM_INLINE const T* {name}(long batch) const {{\n{indent(lines, 2)}\n  }}\n"


def _store_row(kernel: GemmKernel, plan: Plan) -> list[str]:
    """C++ statements that store a row of a tile.

    If stores see n as several dimensions, a loop goes along the innermost, so that no element needs a division."""
    rows = [f"row{axis}" for axis in range(len(kernel.m_sizes))]
    lines = code.split_index("row", kernel.m_sizes, rows)
    names = [*_batch_names(kernel), *(rows or ["row"])]
    if not kernel.n_sizes:
        return [*lines, *_store_run(kernel, plan, [*names, "column"], count="columns", first="j0", place="j")]
    *outer, inner = kernel.n_sizes
    columns = [f"column{axis}" for axis in range(len(outer))]
    inside = [
        f"const long start = (j0 + done) % {inner};",
        f"run = columns - done < {inner} - start ? columns - done : {inner} - start;",
        *code.split_index(f"(j0 + done) / {inner}", outer, columns),
        *_store_run(kernel, plan, [*names, *columns, "column"], count="run", first="start", place="done + j"),
    ]
    return [*lines, "for (long done = 0, run; done < columns; done += run) {", *("  " + line for line in inside), "}"]


def _store_run(kernel: GemmKernel, plan: Plan, names: list[str], count: str, first: str, place: str) -> list[str]:
    """C++ loop that stores `count` columns from number `first`; `place`: C text of the index of their sums in the
    row."""
    return [
        "#pragma omp simd",
        f"for (long j = 0; j < {count}; ++j) {{",
        f"  const long column = {first} + j;",
        f"  const T acc = sums[i * pitch + {place}];",
        *("  " + line for line in code.store_lines(kernel.stores, plan, names)),
        "}",
    ]


def _print_struct(shape: _Shape, plan: Plan, constants: dict[str, int]) -> tuple[str, list[str]]:
    """(C++ struct of the kernel, names of the buffers it points to)."""
    kernel = shape.kernel
    written = [store.buffer for store in kernel.stores]
    epilogue = code.loaded_buffers(store.value for store in kernel.stores)
    buffers = list(dict.fromkeys([*code.loaded_buffers([kernel.a, kernel.b]), *epilogue, *written]))
    names = _batch_names(kernel)
    store_head = code.split_index("batch", kernel.batch, names)
    store_head += code.declare_local_pointers(dict.fromkeys([*epilogue, *written]), plan, written)
    holes = {
        "NAME": kernel.name,
        "T": shape.float_type,
        "VB": str(shape.lanes * shape.float_bytes),
        "CONSTANTS": indent([f"static constexpr long {key} = {value};" for key, value in constants.items()], 1),
        "MEMBERS": indent(code.declare_members(buffers, plan, written), 1),
        "A_RUN": _run_text(kernel, shape.a, plan),
        "B_RUN": _run_text(kernel, shape.b, plan),
        "POINTERS": _pointer_text(kernel, "a", shape.a) + _pointer_text(kernel, "b", shape.b),
        "STORE_HEAD": indent(store_head, 2),
        "STORE_ROW": indent(_store_row(kernel, plan), 3),
    }
    return fill(_STRUCT, holes), buffers


def _common_constants(shape: _Shape) -> dict[str, int]:
    """Constants that both templates read, by name."""
    kernel = shape.kernel
    return {
        "BATCH": shape.batch,
        "M": kernel.m,
        "N": kernel.n,
        "K": kernel.k,
        "A_ALONG_K": int(shape.a.along_column),
        "B_ALONG_N": int(shape.b.along_column),
    }


def _print_binding(name: str, buffers: list[str]) -> list[str]:
    """C++ statements that define the kernel's struct `g` and set its pointers."""
    return [f"gemm_{name} g;", *(f"g.b_{buffer} = b_{buffer};" for buffer in buffers)]


def _print_packed(shape: _Shape, plan: Plan, algorithm: Tunable, choices: dict[str, Choice]) -> PrintedKernel:
    """The kernel with packed tiles; a constant B is packed ahead, by `prepare`."""
    kernel = shape.kernel
    tunables = (algorithm, *_packed_tunables(shape))
    values = tiling.pick(tunables, choices)
    constants, spaces = _packed_constants(shape, values)
    text, buffers = _print_struct(shape, plan, {**_common_constants(shape), **constants})
    packed = f"{kernel.name}_packed"
    source = f"({shape.float_type}*)b_{packed}" if kernel.constant_b else "nullptr"
    call = [*_print_binding(kernel.name, buffers), f"gemm::run(g, {source}, workspace);"]
    prepare = [*_print_binding(kernel.name, code.loaded_buffers([kernel.b])), f"gemm::prepare(g, {source});"]
    b_elements = kernel.k * spaces["width"] * (shape.batch if shape.b_batched else 1)
    return PrintedKernel(
        functions=text,
        shared=(*([WITH_PAIRS] if constants["PAIRS"] else []), read_library_text("cpu/contractions/gemm.cpp")),
        call="{\n" + indent(call, 1) + "\n}",
        template="gemm",
        choices=values,
        tunables=tunables,
        workspace_bytes=spaces["workspace"] + 64,
        prepare={packed: "{\n" + indent(prepare, 1) + "\n}"} if kernel.constant_b else {},
        prepared_sizes={packed: b_elements * shape.float_bytes // 4} if kernel.constant_b else {},
        labels=("prepared_weights",) if kernel.constant_b else (),
    )


def _padded_width(shape: _Shape, panel: int) -> int:
    """Number of columns of packed B; a last panel that is not full has whole vectors."""
    rest = shape.kernel.n % panel
    return shape.kernel.n - rest + round_up(rest, shape.lanes)


def _b_space(shape: _Shape, panel: int, depth: int, is_direct: bool) -> int:
    """Number of elements in B's copy: 0 for a constant weight; only the last panel if B is read in place."""
    if shape.kernel.constant_b:
        return 0
    columns = round_up(shape.kernel.n % panel, shape.lanes) if is_direct else _padded_width(shape, panel)
    return round_up(depth * columns, 16)


def _packed_constants(shape: _Shape, values: dict[str, Choice]) -> tuple[dict[str, int], dict[str, int]]:
    """(template constants by name, {"width": columns of packed B, "workspace": bytes of scratch memory})."""
    kernel = shape.kernel
    tile = tiling.RegisterTile.parse(str(values["tile"]))
    depth = int(values["block_k"])
    rows = min(round_up(int(values["block_rows"]), tile.rows), round_up(kernel.m, tile.rows))
    panel = tile.vectors * shape.lanes
    panels = math.ceil(kernel.n / panel)
    width = _padded_width(shape, panel)
    by_batch = values.get("parallel") == "batch"
    pack_a = values.get("pack_a", "yes") == "yes"
    direct_b = values.get("pack_b", "yes") == "no"
    packed_bytes = kernel.k * width * shape.float_bytes
    limit = max(8 << 20, shape.device.cache_bytes // 2)
    staged = not by_batch and not kernel.constant_b and not direct_b and packed_bytes > limit and depth < kernel.k
    pitch = round_up(depth, shape.lanes) + shape.lanes if shape.a.along_column else rows
    a_view = shape.a.pointer.view.strides[-2:] if shape.a.pointer else (0, 0)
    b_row = shape.b.pointer.view.strides[-2] if shape.b.pointer else 0
    b_space = _b_space(shape, panel, min(depth, kernel.k) if staged else kernel.k, direct_b)
    sums = round_up(math.ceil(kernel.m / tile.rows) * panels * tile.rows * panel if depth < kernel.k else 0, 16)
    a_space = round_up((rows * pitch if shape.a.along_column else depth * pitch) if pack_a else 0, 16)
    tasks = shape.batch if by_batch else math.ceil(kernel.m / rows) * panels
    threads = min(shape.threads, max(1, tasks))
    sets = threads if by_batch else 1
    elements = threads * a_space + sets * (b_space + sums)
    constants = {
        "PAIRS": int(shape.a.is_of_bfloat16 and shape.b.is_of_bfloat16),
        "MR": tile.rows,
        "NV": tile.vectors,
        "KC": depth,
        "MC": rows,
        "NC": min(int(values["block_panels"]), panels),
        "AHEAD": int(values["prefetch"]),
        "PANEL_OUTER": int(values["order"] == "panels_outer"),
        "PACK_A": int(pack_a),
        "A_PITCH": pitch,
        "A_ROW_STRIDE": a_view[0],
        "A_COLUMN_STRIDE": a_view[1],
        "DIRECT_B": int(direct_b),
        "B_ROW_STRIDE": b_row,
        "PREPARED_B": int(kernel.constant_b),
        "B_BATCHED": int(shape.b_batched),
        "BY_BATCH": int(by_batch),
        "STAGED": int(staged),
        "DYNAMIC": int(values.get("schedule", "static") == "dynamic"),
        "THREADS": threads,
        "A_SPACE": a_space,
        "B_SPACE": b_space,
        "SUM_SPACE": sums,
    }
    return constants, {"width": width, "workspace": elements * shape.float_bytes}


def _print_streamed(shape: _Shape, plan: Plan, algorithm: Tunable, choices: dict[str, Choice]) -> PrintedKernel:
    """The kernel that reads B once in place, for few rows of A."""
    kernel = shape.kernel
    tunables = (algorithm, *_streamed_tunables(shape))
    values = tiling.pick(tunables, choices)
    columns, splits = int(values["block_columns"]), int(values["splits"])
    direct = shape.b.pointer is not None
    strides = shape.b.pointer.view.strides[-2:] if shape.b.pointer else (0, 0)
    depth = 2048
    copies = 8 * columns if shape.b.along_column else (kernel.m + 4) * depth
    blocks = shape.batch * math.ceil(kernel.n / columns)
    threads = min(shape.threads, blocks * splits)
    constants = {
        "NC": columns,
        "KC": depth,
        "SPLITS": splits,
        "DIRECT_B": int(direct and strides[1 if shape.b.along_column else 0] == 1),
        "B_ROW_STRIDE": strides[0],
        "B_COLUMN_STRIDE": strides[1],
        "THREADS": threads,
        "A_SPACE": round_up(copies, 16),
    }
    text, buffers = _print_struct(shape, plan, {**_common_constants(shape), **constants})
    call = [*_print_binding(kernel.name, buffers), "gemm::run_skinny(g, workspace);"]
    elements = threads * (constants["A_SPACE"] + kernel.m * columns)
    elements += blocks * splits * kernel.m * columns if splits > 1 else 0
    return PrintedKernel(
        functions=text,
        shared=(read_library_text("cpu/contractions/gemm.cpp"), read_library_text("cpu/contractions/gemm_skinny.cpp")),
        call="{\n" + indent(call, 1) + "\n}",
        template="gemm",
        choices=values,
        tunables=tunables,
        workspace_bytes=elements * shape.float_bytes + 64,
    )


def print_gemm(kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a (batched) matrix product A (m x k) times B (k x n) with its prologues and epilogue.

    `choices` may hold "algorithm" ("packed" or "streamed"). For "packed" also:
    - "tile": rows x vectors of the register tile, such as "6x2"
    - "block_k": elements along k that are packed at a time
    - "block_rows": rows of A in a task
    - "block_panels": column panels of B in a task
    - "order": "panels_outer" or "rows_outer", which operand stays in L1
    - "pack_a", "pack_b": "yes" copies blocks of an operand, "no" reads them in place
    - "prefetch": rows of B fetched ahead, 0 leaves it to the hardware
    - "schedule", "parallel": how tasks go to threads
    For "streamed": "block_columns" (columns of a task) and "splits" (parts of k that are summed in parallel).
    Both, where an output is large: "pages" ("default" or "huge") of its memory.
    A value that is not legal for this kernel gives way to the default.
    """
    shape = _describe_shape(kernel, device)
    algorithm = _algorithm_tunable(shape)
    wanted = tiling.pick((algorithm,), choices)["algorithm"]
    printed = (_print_streamed if wanted == "streamed" else _print_packed)(shape, plan, algorithm, choices)
    tuning = Tuning(choices)
    advice, labels = page_advice(tuning, kernel.stores, plan)
    return replace(
        printed,
        call="\n".join([*advice, printed.call]),
        choices={**printed.choices, **tuning.values},
        tunables=(*printed.tunables, *tuning.tunables),
        labels=(*printed.labels, *labels),
    )
