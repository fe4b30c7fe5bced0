"""The launches before the products. One packs the input channels-last, one repairs images whose guessed power of two
was wrong, one packs the weights."""

from __future__ import annotations

import math

from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import GUESS, SIZES, TYPES
from foundry.knowledge.compiler.cuda.convolutions.channels_last_layout import (
    PACKING_THREADS,
    ChannelsLastLayout,
)
from foundry.knowledge.compiler.cuda.dialect import element_type
from foundry.knowledge.compiler.cuda.launches import Launch
from foundry.knowledge.compiler.cuda.space import indent
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text

_AXES = range(3)
_BLOCK = (PACKING_THREADS, 1, 1)


def print_packing(layout: ChannelsLastLayout) -> list[tuple[str, Launch]]:
    """(CUDA text, launch) of each packing kernel, that of the weights last. The first text holds its function too, so
    its own is ""."""
    name, images, x = layout.space.name, layout.kernel.batch, layout.kernel.x
    values = _tables(layout) | _input_values(layout) | _weight_values(layout)
    arguments = (x, layout.image, *([layout.peaks] if layout.is_scaled else []))
    pack = Launch(f"{name}_pack", (layout.pack_blocks * images, 1, 1), _BLOCK, arguments)
    found = [(fill_text("channels_last_pack.cu", values), pack)]
    if layout.is_scaled:
        arguments = (x, layout.image, layout.peaks, layout.exponents_x)
        repair = Launch(f"{name}_repair", (layout.repairers * images, 1, 1), _BLOCK, arguments)
        found.append((fill_text("channels_last_repair.cu", values), repair))
    return [*found, ("", _weights_launch(layout))]


def _weights_launch(layout: ChannelsLastLayout) -> Launch:
    """The launch that packs the weights."""
    arguments = (layout.kernel.weight, layout.weights, *([layout.exponents_w] if layout.is_scaled else []))
    blocks = math.ceil(layout.weight_rows / 8)
    return Launch(f"{layout.space.name}_weights", (blocks, 1, 1), _BLOCK, arguments, prepares=layout.is_prepared)


def _tap_values(layout: ChannelsLastLayout) -> dict[str, object]:
    """Holes for the tap of the weights that piece `at` meets (-1 behind the last one), and for its first channel.

    They are formulas if every tap has all pieces of a group in turn, else reads of tables."""
    packed, name = layout.packed, layout.space.name
    each, piece = packed.pieces_group, 16 // SIZES[layout.precision]
    last = layout.space.taps * each
    behind = len(packed.reads) - last
    taps = (*(at // each for at in range(last)), *(-1,) * behind)
    if packed.taps == taps and packed.channels == (*(at % each * piece for at in range(last)), *(0,) * behind):
        tap = f"at < {layout.space.taps} * each ? at / each : -1"
        count = [f"const int each = {each};"]
        return {"TAP_TABLES": "", "PIECES_OF_TAP": indent(count), "TAP": tap, "CHANNEL": "at % each * PIECE"}
    tables = [
        "// Which tap of the weights a piece meets (-1 behind the last one), and its first channel.",
        f"__device__ const int {name}_taps[{len(packed.taps)}] = {{{', '.join(map(str, packed.taps))}}};",
        f"__device__ const int {name}_channels[{len(packed.taps)}] = {{{', '.join(map(str, packed.channels))}}};",
    ]
    read = {"TAP": f"{name}_taps[at]", "CHANNEL": f"{name}_channels[at]"}
    return {"TAP_TABLES": "\n".join(tables), "PIECES_OF_TAP": "", **read}


def _tables(layout: ChannelsLastLayout) -> dict[str, object]:
    """Holes for the tables that both kernels read: the pieces and their form."""
    packed, name = layout.packed, layout.space.name
    values: dict[str, object] = {
        "NAME": name,
        "PRECISION": TYPES[layout.precision],
        "PIECES": len(packed.reads),
        "READS": ", ".join(map(str, packed.reads)),
        **_tap_values(layout),
        "C": layout.found.in_per_group,
        "PACK": "pack::cut<Precision>" if packed.low else "Precision::pack",
        "PARTS": 2 if packed.low else 1,
        "HAS_LOW": str(packed.low > 0).lower(),
        "LOW_BYTES": packed.low * 16,
        "LOW_TABLE": "",
        "IS_LOW": "false",
    }
    if packed.low:
        table = ", ".join(str(int(low)) for low in packed.low_weights)
        values["LOW_TABLE"] = f"__device__ const bool {name}_low[{len(packed.reads)}] = {{{table}}};"
        values["IS_LOW"] = f"{name}_low[at]"
    return values


def _input_values(layout: ChannelsLastLayout) -> dict[str, object]:
    """Holes for packing the input."""
    space, packed, kernel = layout.space, layout.packed, layout.kernel
    keep = [
        "using Largest = Extreme<float, true>;",
        "SHARED_STATES(Largest, partials, 8);",
        "largest = reduce_block<8>(largest, partials);",
        "if (threadIdx.x == 0) peaks[blockIdx.x] = largest.value;",
    ]
    texts = [f"const {space.x_type}* __restrict__ b_{kernel.x}", "unsigned char* __restrict__ packed"]
    return {
        "X": kernel.x,
        "X_TYPE": space.x_type,
        "INSIDE": space.inside,
        **{"PART": layout.part, "SPOTS": packed.spots, "POINT": packed.point, "PACK_BLOCKS": layout.pack_blocks},
        **{"SPOT_BLOCKS": layout.spot_blocks, "CHUNKS": layout.chunks, "PIECES_GROUP": packed.pieces_group},
        "ORIGIN": space.origin("photo", "0"),
        **{f"P{d}": packed.size[d] for d in _AXES},
        **{f"LEAD{d}": layout.found.axes[d].lead for d in _AXES},
        **{f"IN{d}": kernel.input_size[d] for d in _AXES},
        **{f"STRIDE{d}": kernel.x_strides[2 + d] for d in _AXES},
        "STRIDE_C": kernel.x_strides[1],
        "FOUND": space.x_value("found"),
        "GUESS": GUESS if layout.is_scaled else 0,
        "REPAIRERS": layout.repairers,
        "PACK_PARAMETERS": ", ".join([*texts, *(["float* __restrict__ peaks"] if layout.is_scaled else [])]),
        "KEEP_PEAK": indent(keep) if layout.is_scaled else "",
    }


def _weight_values(layout: ChannelsLastLayout) -> dict[str, object]:
    """Holes for packing the weights."""
    space, kernel = layout.space, layout.kernel
    scale = [
        "float largest = 0.0f;",
        "for (int at = lane; at < pieces; at += 32)",
        "    for (int e = 0; e < PIECE; ++e) largest = math::maximum(largest, pack::finite(read(at, e)));",
        "#pragma unroll",
        "for (int mask = 16; mask; mask /= 2)",
        "    largest = math::maximum(largest, __shfl_xor_sync(0xffffffffu, largest, mask));",
        "const int exponent = pack::exponent_for(largest);",
        "const float scale = pack::power(exponent);",
        "if (lane == 0) exponents_w[row] = -exponent;",
    ]
    stored = element_type(space.plan.buffers[kernel.weight].dtype)
    texts = [f"const {stored}* __restrict__ weight", "unsigned char* __restrict__ weights"]
    return {
        "W_TYPE": stored,
        "FOUND_WEIGHT": space.weight_value("found"),
        "WEIGHT_AT": _weight_place(layout),
        **{"WEIGHT_ROWS": layout.weight_rows, "PADDED_N": layout.padded_n, "N": layout.n},
        **{"BN": layout.shape.tile_channels, "TILES_N": layout.tiles[1], "ALL_STEPS": layout.packed.all_steps},
        "WEIGHT_PARAMETERS": ", ".join([*texts, *(["int* __restrict__ exponents_w"] if layout.is_scaled else [])]),
        "WEIGHT_SCALE": indent(scale) if layout.is_scaled else "",
        "TIMES": " * scale" if layout.is_scaled else "",
    }


def _weight_place(layout: ChannelsLastLayout) -> str:
    """C text of the index of the weight of output channel `n` and input channel `c` of a group."""
    n, c, taps = layout.n, layout.found.in_per_group, layout.space.taps
    rows = f"(group * {c} + c) * {n} + n" if layout.kernel.transposed else f"(group * {n} + n) * {c} + c"
    place = f"({rows}) * {taps} + tap"
    return f"(long long){place}" if layout.kernel.in_channels * n * taps >= 2**31 else place


def fill_text(name: str, holes: dict[str, object]) -> str:
    """The library text cuda/convolutions/`name`, with its holes filled by those of `holes` that it has."""
    text = read_library_text(f"cuda/convolutions/{name}")
    return fill(text, {key: str(value) for key, value in holes.items() if f"@{key}@" in text})
