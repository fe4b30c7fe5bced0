"""The tiled product that matrix products and convolutions share: its main loops, and the stores of its result.

`gemm.cu` multiplies on the ordinary units in IEEE arithmetic, `gemm_mma.cu` and `gemm_wgmma.cu` on tensor cores. All
leave a thread with four neighbours of a row, `acc[i][h * 4 + j]` at (m, n + j), so that one epilogue serves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foundry.knowledge.compiler.cuda.contractions.gemm_tiles import Tiling
from foundry.knowledge.compiler.cuda.contractions.operands import Tile
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import TensorTiling
from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT
from foundry.knowledge.compiler.cuda.space import (
    Known,
    Space,
    element_load,
    indent,
    loop_over_vector,
    make_emitter,
    plan_loads,
    vector_type,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import Expr, Plan, Store
from foundry.knowledge.compiler.ir.views import leaves

GROUP = 8  # rows of tiles that blocks walk together, so that they share operands in L2


def epilogue_lines(
    space: Space,
    stores: Sequence[Store],
    plan: Plan,
    acc: str,
    vector: int,
    guard: str,
    element_guard: str,
    kept: Mapping[str, Expr] | None = None,
    note: Sequence[str] = (),
    store_guard: str = "",
    to: str = "",
) -> list[str]:
    """C statements that store at (m, n .. n + vector); `acc` is C text of the accumulator of element j.

    Without aligned stores the elements are stored one by one.
    - `guard`, `element_guard`: C tests of all neighbours, and of element j; "" where they always hold
    - `kept`: C variables that take further values of each element; `note`: further statements for each
    - `store_guard`: C test for the stores alone, so that arithmetic of several elements overlaps
    - `to`: address to which a single store goes, if it is not the buffer's"""
    values = kept or {}
    wide = vector > 1 and not element_guard and all(space.is_aligned(store.view, vector) for store in stores)
    known: Known = []
    lines: list[str] = []
    if wide:
        found = leaves([*(store.value for store in stores), *values.values()])
        for number, leaf in enumerate(plan_loads(space, found, vector).vectors):
            source = f"load_vec<{vector}>(b_{leaf.buffer} + {space.offset(leaf.view)})"
            lines.append(f"const {vector_type(leaf.dtype, vector)} e{number} = {source};")
            known.append((leaf, element_load(f"e{number}.at[j]", leaf.dtype)))
    inner = space.at_neighbour(vector)
    body = make_emitter(inner, known, {"acc": acc})
    body.reserve([*(store.value for store in stores), *values.values()])
    after: list[str] = []
    test = f"if ({store_guard}) " if store_guard else ""
    for number, store in enumerate(stores):
        dtype = plan.buffers[store.buffer].dtype
        value = CUDA_DIALECT.store(body.value(store.value), dtype)
        if wide:
            lines.append(f"{vector_type(dtype, vector)} out{number};")
            body.lines.append(f"out{number}.at[j] = {value};")
            place = to or f"b_{store.buffer} + {space.offset(store.view)}"
            after.append(f"{test}store_vec<{vector}>({place}, out{number});")
        else:
            body.lines.append(f"{test}b_{store.buffer}[{inner.offset(store.view)}] = {value};")
    for name, expr in values.items():
        body.lines.append(f"{name} = {body.value(expr)};")
    inside = [*body.lines, *note]
    if element_guard and not wide:
        inside = [f"if ({element_guard}) {{", *inside, "}"]
    lines = [*lines, *loop_over_vector(vector, inside), *after]
    return [f"if ({guard}) {{", *lines, "}"] if guard else lines


def slab_pitch(tiling: TensorTiling) -> int:
    """Words between the rows of a warp's slab: 16 rows of its part, on their way from registers to lanes."""
    return tiling.store_columns + 4


def slab_bytes(tiling: TensorTiling) -> int:
    """Bytes of shared memory for the slabs of all warps of a block."""
    return tiling.threads // 32 * 16 * slab_pitch(tiling) * 4


def slab_epilogue(
    tiling: TensorTiling, index: str, place: Sequence[str], tests: Sequence[str], body: Sequence[str]
) -> list[str]:
    """C statements that store a warp's part through shared memory, 16 rows at a time: each lane stores one of 32
    neighbouring columns of a row.

    `place` finds the column's place in the result from `column_n`, once for 16 rows; `body` stores `value` at (row_m,
    column_n) if `tests` hold."""
    pitch = slab_pitch(tiling)
    return [
        "__syncwarp();",
        "#pragma unroll",
        "for (int h = 0; h < WN / 8; ++h)",
        f"store_vec<4>(slab + (lane / 4 + lane % 2 * 8) * {pitch} + h * 8 + lane % 4 / 2 * 4,",
        "    *reinterpret_cast<const Vec<float, 4>*>(&mma::four(acc[i] + h * 4)));",
        "__syncwarp();",
        "#pragma unroll 1",
        "for (int c = 0; c < WN; c += 32) {",
        f"const {index} column_n = first_n + warp_n + c + lane;",
        *place,
        "#pragma unroll 4",
        "for (int e = 0; e < 16; ++e) {",
        f"const {index} row_m = first_m + warp_m + i * ROWS + e;",
        f"const float value = slab[e * {pitch} + c + lane];",
        *([f"if ({' && '.join(tests)}) {{"] if tests else ["{"]),
        *body,
        *("}", "}", "}"),
    ]


def tiled_source(
    name: str,
    signature: str,
    a: Tile,
    b: Tile,
    index: str,
    tiles: tuple[int, int],
    batch: Sequence[str],
    steps: tuple[str, str],
    epilogue: Sequence[str],
    *,
    scalar: bool,
    tile: str = "",
    afterwards: Sequence[str] = (),
    after_row: Sequence[str] = (),
    is_slab: bool = False,
) -> str:
    """CUDA text of the kernel with one of the main loops, which `a.tiling` decides.

    - `tiles`: number of the result's tiles along m and n; `tile`: C text of the block's tile number, if not by its own
    - `batch`: statements that define other indices of operands and epilogue than m, n and k
    - `steps`: C texts of the first tile of k and of the one behind the last
    - `scalar`: every element of an operand has an address of its own, held in registers
    - `afterwards`: statements between the main loop and the epilogue
    - `epilogue`: statements for four neighbours of a row, or for a warp's 16 rows (`is_slab`)
    - `after_row`: statements behind all of a row's"""
    tiling = a.tiling
    values: dict[str, object] = {
        "NAME": name,
        "PARAMETERS": signature,
        "INDEX": index,
        **{"BM": tiling.tile_m, "BN": tiling.tile_n, "BK": tiling.tile_k},
        **{"THREADS": tiling.threads, "STAGES": tiling.stages, "GROUP": GROUP},
        "TILE": tile or f"(int)blockIdx.x % {tiles[0] * tiles[1]}",
        **{"TILES_M": tiles[0], "TILES_N": tiles[1]},
        "BATCH": indent(batch),
        **{"VECTOR_A": a.vector, "VECTOR_B": b.vector, "LOADS_A": a.loads, "LOADS_B": b.loads},
        "FETCH_A": indent(a.fetch(), 2),
        "FETCH_B": indent(b.fetch(), 2),
        "KEEP_A": indent(a.keep(), 2),
        "KEEP_B": indent(b.keep(), 2),
        **{"FIRST_STEP": steps[0], "END_STEP": steps[1]},
        "AFTERWARDS": indent(afterwards),
    }
    if isinstance(tiling, TensorTiling):
        text = tiling.text
        values |= {"PRECISION": tiling.type_name, "MIN_BLOCKS": tiling.resident_blocks(scalar=scalar), **tiling.holes}
        values |= {"A_ALONG_K": str(a.along_k).lower(), "B_ALONG_K": str(b.along_k).lower()}
        values["EPILOGUE"] = indent(epilogue if is_slab else [*_each_four(epilogue, index), *after_row], 2)
    else:
        text = "cuda/contractions/gemm.cu"
        values |= {"TYPE": a.type, "TM": tiling.thread_m, "TN": tiling.thread_n}
        values["MIN_BLOCKS"] = tiling.resident_blocks(8 if a.type == "double" else 4, scalar=scalar)
        values |= {"AFTER_ROW": indent(after_row, 2), "EPILOGUE": indent(epilogue, 3)}
    return fill(read_library_text(text), values)


def _each_four(epilogue: Sequence[str], index: str) -> list[str]:
    """The epilogue of four neighbours, in a loop over all that a lane holds of its row."""
    first = f"const {index} n = first_n + warp_n + h * 8 + lane % 4 / 2 * 4;"
    return ["#pragma unroll", "for (int h = 0; h < WN / 8; ++h) {", first, *epilogue, "}"]


def shared_bytes(a: Tile, b: Tile) -> int:
    """Bytes of dynamic shared memory of the main loop."""
    if isinstance(a.tiling, TensorTiling):
        return a.tiling.shared_bytes(a.along_k, b.along_k)
    return a.tiling.shared_bytes(8 if a.type == "double" else 4)


def shared_texts(tiling: Tiling | TensorTiling) -> tuple[str, ...]:
    """Library texts that the main loop needs in its file, in order."""
    if not isinstance(tiling, TensorTiling):
        return ()
    kits = ("mma", "wgmma") if tiling.path == "wgmma" else ("mma",)
    names = [name for kit in kits for name in (kit, f"{kit}_{'tf32' if tiling.is_tf32 else 'sixteen'}")]
    return tuple(read_library_text(f"cuda/contractions/{name}.cuh") for name in names)
