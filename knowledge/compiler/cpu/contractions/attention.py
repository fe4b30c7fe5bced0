"""Attention on the CPU: an `AttentionKernel` as a struct over attention.cpp; both products use the register tile of
GEMM."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.contractions import gemm_code as code
from foundry.knowledge.compiler.cpu.contractions import gemm_tiles as tiling
from foundry.knowledge.compiler.cpu.space import indent
from foundry.knowledge.compiler.file.texts import fill, read_library_text
from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.kernels import AttentionKernel, Load, Plan, PrintedKernel, Tunable
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT
from foundry.knowledge.device import Device

_PARALLEL_FLOPS = 200_000


@dataclass(frozen=True)
class _Shape:
    """An attention with what its tunables depend on."""

    kernel: AttentionKernel
    float_type: str
    float_bytes: int
    lanes: int
    threads: int
    device: Device

    @property
    def batch(self) -> int:
        """Number of batch points."""
        return math.prod(self.kernel.batch)


def _describe_shape(kernel: AttentionKernel, device: Device) -> _Shape:
    """The kernel with its C type, vector lanes and threads on `device`; small kernels get one thread."""
    float_type, float_bytes = tiling.element_type(kernel.dtype)
    flops = 2 * math.prod(kernel.batch) * kernel.rows * kernel.columns * (kernel.head + kernel.value_head)
    threads = max(1, device.cores) if flops >= _PARALLEL_FLOPS else 1
    lanes = max(1, device.vector_bytes // float_bytes)
    return _Shape(kernel, float_type, float_bytes, lanes=lanes, threads=threads, device=device)


def _tile_tunable(shape: _Shape) -> Tunable:
    """The tunable "tile" for the scores, best first; tiles are always whole, so padded rows and columns count."""
    kernel = shape.kernel
    vectors = math.ceil(kernel.columns / shape.lanes)

    def cost(tile: tiling.RegisterTile) -> float:
        """Estimated cycles of one element of the head for all scores."""
        tiles = math.ceil(kernel.rows / tile.rows) * math.ceil(vectors / tile.vectors)
        return tiles * tiling.tile_cycles(tile.rows, tile.vectors)

    fitting = tiling.list_tiles(kernel.rows, vectors, tiling.vector_registers(shape.device))
    values = tuple(tile.text for tile in sorted(fitting, key=cost)[:8])
    return Tunable("tile", values, values[0], "tile", "query rows x key vectors in registers")


def _value_vectors(shape: _Shape, rows: int) -> int:
    """Vectors of the value tile: the fewest cycles over the value head among those that fit beside `rows` rows."""
    total = math.ceil(shape.kernel.value_head / shape.lanes)
    registers = tiling.vector_registers(shape.device)
    fitting = [v for v in range(1, 9) if v <= total and rows * v + v + 1 <= registers] or [1]
    return min(fitting, key=lambda v: math.ceil(total / v) * tiling.tile_cycles(rows, v))


def _list_tunables(shape: _Shape) -> tuple[Tunable, ...]:
    """The tunables of this kernel with their defaults; task size and schedule only with several threads."""
    kernel = shape.kernel
    tile = _tile_tunable(shape)
    first = tiling.RegisterTile.parse(str(tile.default))
    width = first.vectors * shape.lanes
    query = min(round_up(64, first.rows), round_up(kernel.rows, first.rows))
    key = round_up(min(kernel.columns, 256), width)
    rows_up = round_up(kernel.rows, first.rows)
    queries = ("tile", "query rows that share a pass over the keys")
    keys = ("memory", "keys whose scores are kept at once; large blocks cost accuracy")
    result = [
        tile,
        tiling.number_tunable("query_block", query, [16, 32, 64, 128, 256], 1, rows_up, aspect_meaning=queries),
        tiling.number_tunable("key_block", key, [64, 128, 256, 512, 1024], 1, kernel.columns, aspect_meaning=keys),
    ]
    if shape.threads > 1:
        blocks = math.ceil(kernel.rows / query)
        wanted = 4 if kernel.causal else 2
        chunk = (
            blocks if shape.batch >= wanted * shape.threads else math.ceil(blocks * shape.batch / (2 * shape.threads))
        )
        meaning = ("parallel", "query blocks a task; fewer, more tasks that pack the same keys")
        result.append(
            tiling.number_tunable(
                "query_blocks_per_task", max(1, chunk), [1, 2, 4, 8], 1, blocks, aspect_meaning=meaning
            )
        )
        result.append(
            Tunable("schedule", ("dynamic", "static"), "dynamic", "parallel", "balance of tasks against their order")
        )
    return tuple(result)


# Unnamed namespace: static members of a named one would be shared by all libraries of a process (STB_GNU_UNIQUE).
_STRUCT = """
namespace {

struct attention_@NAME@ {
  typedef @T@ T;
  static constexpr int VB = @VB@;
@CONSTANTS@
@MEMBERS@

  GEMM_INLINE void q_run(long batch, long row, T* out) const {
@Q_HEAD@
#pragma omp simd
    for (long e = 0; e < HEAD; ++e) out[e] = (T)(@Q@) * @SCALE@;
  }

  GEMM_INLINE void k_run(long batch, long column, long d, long count, T* out) const {
@K_HEAD@
#pragma omp simd
    for (long e = 0; e < count; ++e) out[e] = (T)(@K@);
  }

  GEMM_INLINE void v_run(long batch, long column, long d, long count, T* out) const {
@V_HEAD@
#pragma omp simd
    for (long e = 0; e < count; ++e) out[e] = (T)(@V@);
  }

  // Adds the mask to `count` scores of a row from column k0 on.
  GEMM_INLINE void mask(long batch, long row, long k0, long count, T* scores) const {
@MASK@
  }

  GEMM_INLINE void store(long batch, long row, const T* result) const {
@STORE_HEAD@
#pragma omp simd
    for (long e = 0; e < VALUE_HEAD; ++e) {
      const T acc = result[e];
@STORE@
    }
  }
};

}  // namespace
"""


def _element(load: Load, names: list[str], plan: Plan) -> str:
    """C text that reads the load's element at the index variables `names`."""
    where = code.offset_by(names)(load.view)
    return code.load_text(f"b_{load.buffer}[{where}]", plan.buffers[load.buffer].dtype)


def _print_struct(shape: _Shape, plan: Plan, constants: dict[str, int]) -> tuple[str, list[str]]:
    """(C++ struct of the kernel, names of the buffers it points to)."""
    kernel = shape.kernel
    names = [f"d{index}" for index in range(len(kernel.batch))]
    heads = code.split_index("batch", kernel.batch, names)
    written = [store.buffer for store in kernel.stores]
    epilogue = code.loaded_buffers(store.value for store in kernel.stores)
    masks = [kernel.mask] if kernel.mask is not None else []
    loads = [load.buffer for load in (kernel.q, kernel.k, kernel.v)]
    buffers = list(dict.fromkeys([*loads, *code.loaded_buffers(masks), *epilogue, *written]))
    by_column = constants["KEYS_ALONG_COLUMNS"]
    by_head = constants["VALUES_ALONG_HEAD"]
    mask_text = ["(void)batch; (void)row; (void)k0; (void)count; (void)scores;"]
    if kernel.mask is not None:
        body = code.value_lines(kernel.mask, [*names, "row", "column"], "const T term", "T", {})
        mask_text = [*heads, *code.declare_local_pointers(code.loaded_buffers(masks), plan, ()), "#pragma omp simd"]
        mask_text += ["for (long e = 0; e < count; ++e) {", "  const long column = k0 + e;", "  (void)column;"]
        mask_text += [*("  " + line for line in body), "  scores[e] += term;", "}"]
    holes = {
        "NAME": kernel.name,
        "T": shape.float_type,
        "VB": str(shape.lanes * shape.float_bytes),
        "CONSTANTS": indent([f"static constexpr long {key} = {value};" for key, value in constants.items()], 1),
        "MEMBERS": indent(code.declare_members(buffers, plan, written), 1),
        "Q_HEAD": indent([*heads, *code.declare_local_pointers([kernel.q.buffer], plan, ())], 2),
        "K_HEAD": indent([*heads, *code.declare_local_pointers([kernel.k.buffer], plan, ())], 2),
        "V_HEAD": indent([*heads, *code.declare_local_pointers([kernel.v.buffer], plan, ())], 2),
        "Q": _element(kernel.q, [*names, "row", "e"], plan),
        "K": _element(kernel.k, [*names, *(("(column + e)", "d") if by_column else ("column", "(d + e)"))], plan),
        "V": _element(kernel.v, [*names, *(("column", "(d + e)") if by_head else ("(column + e)", "d"))], plan),
        "SCALE": CPU_DIALECT.constant(kernel.scale, "float64" if shape.float_bytes == 8 else "float32"),
        "MASK": indent(mask_text, 2),
        "STORE_HEAD": indent(
            [*heads, *code.declare_local_pointers(dict.fromkeys([*epilogue, *written]), plan, written)], 2
        ),
        "STORE": indent(code.store_lines(kernel.stores, plan, [*names, "row", "e"]), 3),
    }
    return fill(_STRUCT, holes), buffers


def _choose_constants(shape: _Shape, values: dict[str, Choice]) -> dict[str, int]:
    """The struct's constants by name, for the chosen values."""
    kernel = shape.kernel
    tile = tiling.RegisterTile.parse(str(values["tile"]))
    width = tile.vectors * shape.lanes
    query = round_up(min(int(values["query_block"]), kernel.rows), tile.rows)
    key = min(round_up(int(values["key_block"]), width), round_up(kernel.columns, width))
    vectors = _value_vectors(shape, tile.rows)
    value_pitch = round_up(kernel.value_head, vectors * shape.lanes)
    chunk = int(values.get("query_blocks_per_task", math.ceil(kernel.rows / query)))
    space = round_up(kernel.columns, width) * kernel.head + kernel.columns * value_pitch
    space += query * (kernel.head + key + 2 * shape.lanes + value_pitch + 2)
    k_strides, v_strides = kernel.k.view.strides, kernel.v.view.strides
    return {
        **{"BATCH": shape.batch, "ROWS": kernel.rows, "COLUMNS": kernel.columns},
        **{"HEAD": kernel.head, "VALUE_HEAD": kernel.value_head, "CAUSAL": int(kernel.causal)},
        **{"MR": tile.rows, "NV": tile.vectors, "VALUE_NV": vectors, "QUERY_BLOCK": query, "KEY_BLOCK": key},
        "KEYS_ALONG_COLUMNS": int(k_strides[-2] == 1 and k_strides[-1] != 1),
        "VALUES_ALONG_HEAD": int(v_strides[-1] == 1 or v_strides[-2] != 1),
        "EMPTY_IS_NAN": int(kernel.empty_rows == "nan"),
        "CHUNK": chunk,
        "DYNAMIC": int(values.get("schedule", "static") == "dynamic"),
        "THREADS": min(shape.threads, shape.batch * math.ceil(math.ceil(kernel.rows / query) / chunk)),
        "SPACE": round_up(space, 16),
    }


def print_attention(kernel: AttentionKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of an attention with its mask and epilogue.

    `choices` may hold:
    - "tile": query rows x key vectors in registers, such as "6x2"
    - "query_block", "key_block": query rows and key columns of a block
    - "query_blocks_per_task": query blocks that one task takes
    - "schedule": "static" or "dynamic"
    A value that is not legal for this kernel gives way to the default.
    """
    shape = _describe_shape(kernel, device)
    tunables = _list_tunables(shape)
    values = tiling.pick(tunables, choices)
    constants = _choose_constants(shape, values)
    text, buffers = _print_struct(shape, plan, constants)
    call = [f"attention_{kernel.name} g;", *(f"g.b_{name} = b_{name};" for name in buffers)]
    call.append("attention::run(g, workspace);")
    return PrintedKernel(
        functions=text,
        shared=(read_library_text("cpu/contractions/gemm.cpp"), read_library_text("cpu/contractions/attention.cpp")),
        call="{\n" + indent(call, 1) + "\n}",
        template="attention",
        choices=values,
        tunables=tunables,
        workspace_bytes=constants["THREADS"] * constants["SPACE"] * shape.float_bytes + 64,
    )
