"""Convolutions on the CPU: a `ConvKernel` as a struct over conv.cpp, weights packed when they load.

"direct" multiplies by shifted views of a staged band; "implicit_gemm" first gathers each tile's patches into aligned
panels. Both share the staging, the register tile over output channels x pixels, and the epilogue. Groups (depthwise
too), strides, dilation and transposed convolutions are index arithmetic (conv_geometry.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.contractions import gemm_code as code
from foundry.knowledge.compiler.cpu.contractions import gemm_tiles as tiling
from foundry.knowledge.compiler.cpu.contractions.depthwise import print_depthwise, runs_along_channels
from foundry.knowledge.compiler.cpu.space import indent
from foundry.knowledge.compiler.file.texts import fill, read_library_text
from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.conv_geometry import Geometry, Staging, geometry, staging, tap_tables
from foundry.knowledge.compiler.ir.kernels import ConvKernel, Plan, PrintedKernel, Tunable, View
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device

DEPTH = 96  # products summed in registers before the sum is set aside
LEAST_CHANNELS = 24  # input channels that are not cut further for it
_PARALLEL_FLOPS = 200_000
_STAGED_BYTES = tiling.L2_BYTES // 2


@dataclass(frozen=True)
class _Shape:
    """A convolution with what its tunables depend on."""

    found: Geometry
    float_type: str
    float_bytes: int
    lanes: int
    threads: int
    prepared: bool
    in_place: bool
    device: Device

    @property
    def outer(self) -> int:
        """Number of images times groups."""
        return self.found.kernel.batch * self.found.kernel.groups

    @property
    def weight_bytes(self) -> int:
        """Bytes of a group's weights."""
        taps = math.prod(self.found.kernel.kernel)
        return self.found.out_per_group * self.found.in_per_group * taps * self.float_bytes

    def bytes_staged(self, band: tuple[int, int, int]) -> int:
        """Bytes of input that a task stages for a band of outputs (depth, rows, columns)."""
        return staging(self.found, band, True).channel_stride * self.found.in_per_group * self.float_bytes


def _describe_shape(kernel: ConvKernel, plan: Plan, device: Device) -> _Shape:
    """The convolution with its C type, vector lanes and threads on `device`; small ones get one thread."""
    found = geometry(kernel)
    float_type, float_bytes = tiling.element_type(kernel.dtype)
    same = plan.buffers[kernel.x].dtype == ("float64" if float_bytes == 8 else "float32")
    flops = 2 * kernel.batch * kernel.out_channels * math.prod(kernel.output_size) * found.in_per_group
    flops *= math.prod(kernel.kernel)
    return _Shape(
        found,
        float_type,
        float_bytes,
        lanes=max(1, device.vector_bytes // float_bytes),
        threads=max(1, device.cores) if flops >= _PARALLEL_FLOPS else 1,
        prepared=plan.buffers[kernel.weight].role in ("parameter", "constant", "prepared"),
        in_place=found.reads_in_place and same,
        device=device,
    )


def _default_band(shape: _Shape) -> tuple[int, int, int]:
    """(depth, rows, columns) of the outputs that a task stages.

    They fill at most half of L2 and give about four tasks a thread, unless neighbouring bands would then read many rows
    twice.
    """
    depth, height, width = (axis.count for axis in shape.found.axes)
    wanted = max(1, math.ceil(4 * shape.threads / shape.outer)) if shape.threads > 1 else 1
    if height == 1 and depth == 1:
        columns = min(width, max(4 * shape.lanes, math.ceil(width / wanted)))
        while columns > 16 * shape.lanes and shape.bytes_staged((1, 1, columns)) > _STAGED_BYTES:
            columns = math.ceil(columns / 2)
        return 1, 1, tiling.split(width, columns, 1)
    reach = shape.found.axes[1].reach
    rows = min(height, max(math.ceil(height * depth / wanted), 2 * reach, 1))
    while rows > max(1, reach) and shape.bytes_staged((1, rows, width)) > _STAGED_BYTES:
        rows -= 1
    rows = tiling.split(height, rows, 1)
    slabs = 1
    if rows == height:
        while slabs < depth and shape.bytes_staged((slabs + 1, rows, width)) <= _STAGED_BYTES:
            if math.ceil(depth / (slabs + 1)) * shape.outer < 4 * shape.threads:
                break
            slabs += 1
    return tiling.split(depth, slabs, 1), rows, width


@dataclass(frozen=True)
class _Method:
    """An algorithm with the band it works on; both decide the best register tile."""

    patches: bool
    band: tuple[int, int, int]
    images: int

    @property
    def name(self) -> str:
        """The algorithm's name as a choice."""
        return "implicit_gemm" if self.patches else "direct"


def _count_pixels(shape: _Shape, method: _Method) -> int:
    """Number of pixels in one band as tiles count them: patches are dense, shifted views keep the rows' pitch."""
    _, rows, columns = method.band
    if method.patches:
        return method.images * rows * columns
    return (rows - 1) * staging(shape.found, method.band, not shape.in_place).pitch + columns


def _tile_cycles(shape: _Shape, method: _Method, tile: tiling.RegisterTile) -> float:
    """Estimated cycles of one image and product term (channel and tap).

    Shifted loads straddle cache lines, so each counts nearly twice. It counts six times if a tile's inputs do not stay
    in L1 until the next tile of output channels (measured on Zen 5). To gather patches takes a load and a store for
    every vector and every row that a tile of pixels touches.
    """
    channels, width = shape.found.out_per_group, tile.vectors * shape.lanes
    columns = math.ceil(_count_pixels(shape, method) / width)
    near = _reused_bytes(shape, width) <= tiling.L1_BYTES or channels <= tile.rows
    per_vector = 0.5 if method.patches else 0.875 if near else 3.0
    total = 0.0
    for rows, repeat in ((tile.rows, channels // tile.rows), (channels % tile.rows, 1)):
        if rows and repeat:
            loads = rows / 2 + per_vector * tile.vectors
            total += repeat * columns * max(tiling.tile_cycles(rows, tile.vectors), loads)
    if method.patches:
        total += columns * 1.5 * (tile.vectors + width / method.band[2])
    bands = math.prod(math.ceil(axis.count / size) for axis, size in zip(shape.found.axes, method.band, strict=True))
    return total * bands / method.images


def _reused_bytes(shape: _Shape, width: int) -> int:
    """Bytes of input that every tile of output channels reads again for `width` pixels and one block of channels."""
    depth, height, columns = (axis.reach for axis in shape.found.axes)
    channels = _block_channels(shape)
    return channels * len(shape.found.phases) * (depth + 1) * (height + 1) * (width + columns) * shape.float_bytes


def _best_tiles(shape: _Shape, method: _Method) -> list[tiling.RegisterTile]:
    """Register tiles that fit, fewest estimated cycles first."""
    vectors = math.ceil(_count_pixels(shape, method) / shape.lanes)
    fitting = tiling.list_tiles(shape.found.out_per_group, vectors, tiling.vector_registers(shape.device))
    return sorted(fitting, key=lambda tile: (_tile_cycles(shape, method, tile), -tile.vectors))


def _choose_method(shape: _Shape, name: str) -> _Method:
    """The algorithm with its default band, and the number of images that share tiles of patches (1 for "direct")."""
    band = _default_band(shape)
    whole = band == tuple(axis.count for axis in shape.found.axes) and band[0] == 1
    images = 1
    if name == "implicit_gemm" and whole:
        batch = shape.found.kernel.batch
        heavy = shape.weight_bytes > 4 * tiling.L2_BYTES  # then images share the weights' way through L2
        most = batch if heavy else max(1, batch // (2 * shape.threads))
        fits = max(1, (8 if heavy else 2) * _STAGED_BYTES // max(1, shape.bytes_staged(band)))
        wanted = batch if heavy else math.ceil(16 * shape.lanes / (band[1] * band[2]))
        images = min(most, fits, wanted)
    return _Method(name == "implicit_gemm", band, images)


def _algorithm_tunable(shape: _Shape) -> Tunable:
    """The choice of algorithm; the default has the fewer estimated cycles."""
    methods = [_choose_method(shape, name) for name in ("direct", "implicit_gemm")]
    best = min(methods, key=lambda method: _tile_cycles(shape, method, _best_tiles(shape, method)[0]))
    return Tunable(
        "algorithm",
        ("direct", "implicit_gemm"),
        best.name,
        "algorithm",
        "shifted loads without copies, or aligned panels of patches gathered once a tile",
    )


def _block_channels(shape: _Shape) -> int:
    """Number of input channels summed in registers at a time: few, to have errors as small as a vendor library's."""
    found = shape.found
    taps = math.prod(found.kernel.kernel) / len(found.parts)  # transposed: of a phase on average
    depth = 2 * DEPTH if found.kernel.transposed else DEPTH  # PyTorch's transposed convolution also sums longer
    limit = max(LEAST_CHANNELS, int(depth / max(1.0, taps)))
    return tiling.split(found.in_per_group, min(found.in_per_group, limit), 1)


def _list_tunables(shape: _Shape, choices: dict[str, Choice]) -> tuple[Tunable, ...]:
    """The tunables of the algorithm that `choices` wants, with their defaults; depthwise kernels have only "direct"."""
    found = shape.found
    depthwise = found.kernel.groups == found.kernel.in_channels
    algorithm = _algorithm_tunable(shape)
    name = "direct" if depthwise else str(tiling.pick((algorithm,), choices)["algorithm"])
    method = _choose_method(shape, name)
    best = _best_tiles(shape, method)
    values = tuple(tile.text for tile in best[:8])
    meaning = "output channels x pixel vectors in registers: reuse of loads against spills"
    result = [Tunable("tile", values, values[0], "tile", meaning)]
    if not depthwise:
        result = [algorithm, *result, *_channel_tunables(shape)]
    result += _band_tunables(shape, method)
    if shape.threads > 1:
        result += _parallel_tunables(shape, method, best[0].rows)
    return tuple(result)


def _channel_tunables(shape: _Shape) -> list[Tunable]:
    """Tunables of the block of input channels and of the loop order."""
    found = shape.found
    channels = found.in_per_group
    meaning = ("memory", "input channels summed before the next block; large blocks save traffic, cost accuracy")
    order = "pixels_outer" if shape.weight_bytes <= tiling.L2_BYTES else "channels_outer"
    return [
        tiling.number_tunable(
            "block_channels", _block_channels(shape), [16, 32, 64, 128], 1, channels, aspect_meaning=meaning
        ),
        Tunable("order", ("pixels_outer", "channels_outer"), order, "memory", "which operand stays in cache"),
    ]


def _band_tunables(shape: _Shape, method: _Method) -> list[Tunable]:
    """Tunables of the band of outputs that a task stages, and of images that share tiles."""
    depth, height, width = (axis.count for axis in shape.found.axes)
    band, result = method.band, []
    if depth > 1:
        slices = ("memory", "output slices a task stages")
        result.append(tiling.number_tunable("band_depth", band[0], [1, 2, 4, 8, 16], 1, depth, aspect_meaning=slices))
    if height > 1:
        values = [1, 2, 4, 7, 8, 14, 16, 28, 32, 56]
        result.append(
            tiling.number_tunable(
                "band_rows", band[1], values, 1, height, aspect_meaning=("memory", "output rows a task stages")
            )
        )
    else:
        values = [128, 256, 512, 1024, 2048, 4096]
        columns = ("memory", "output columns a task stages")
        result.append(tiling.number_tunable("band_columns", band[2], values, 1, width, aspect_meaning=columns))
    if method.patches:
        images = ("parallel", "images whose pixels share tiles; more fill the tiles of small images")
        most = shape.found.kernel.batch
        result.append(
            tiling.number_tunable("block_images", method.images, [1, 2, 4, 8, 16], 1, most, aspect_meaning=images)
        )
    return result


def _parallel_tunables(shape: _Shape, method: _Method, tile_rows: int) -> list[Tunable]:
    """Tunables of the schedule and of the output channels or groups of a task."""
    found = shape.found
    bands = math.prod(math.ceil(axis.count / size) for axis, size in zip(found.axes, method.band, strict=True))
    tiles = math.ceil(found.out_per_group / tile_rows)
    result = [Tunable("schedule", ("dynamic", "static"), "dynamic", "parallel", "balance of tasks against their order")]
    if found.kernel.groups == 1:
        tasks = bands * math.ceil(found.kernel.batch / method.images)
        default = tiles if tasks >= 2 * shape.threads else math.ceil(tiles / math.ceil(4 * shape.threads / tasks))
        meaning = ("parallel", "tiles of output channels a task; fewer, more tasks that stage the same input")
        result.append(tiling.number_tunable("block_out", default, [1, 2, 4, 8, 16], 1, tiles, aspect_meaning=meaning))
    else:
        tasks = bands * shape.outer
        default = max(1, min(found.kernel.groups, tasks // (8 * shape.threads)))
        meaning = ("parallel", "groups a task; fewer, more tasks")
        result.append(
            tiling.number_tunable(
                "block_groups", default, [1, 2, 4, 8, 16], 1, found.kernel.groups, aspect_meaning=meaning
            )
        )
    return result


# Unnamed namespace: static members of a named one would be shared by all libraries of a process (STB_GNU_UNIQUE).
_STRUCT = """
namespace {

struct conv_@NAME@ {
  typedef @T@ T;
  static constexpr int VB = @VB@;
@CONSTANTS@
@PARTS@
@MEMBERS@

  // `count` inputs from (image, channel, d, h, w) on, IN_STEP_W apart.
  GEMM_INLINE void x_run(long image, long channel, long d, long h, long w, long count, T* out) const {
    const @X_TYPE@* __restrict__ from = b_@X@ + @X_OFFSET@;
#pragma omp simd
    for (long e = 0; e < count; ++e) out[e] = (T)(@X_ELEMENT@);
  }
@POINTER@
  GEMM_INLINE T weight(long group, long out, long in, long tap) const { return (T)(@WEIGHT@); }

  template <class F>
  GEMM_INLINE void parts(F f) const {
@EACH_PART@
  }

  // The epilogue of `count` (a constant if COUNT) outputs of a row: its part's own d and h, but the output's column.
  template <class P, long COUNT>
  GEMM_INLINE void store(long image, long channel, long d, long h, long w, long count, const T* sums) const {
@LOCALS@
    const long o0 = P::START_D + d * P::STEP_D, o1 = P::START_H + h * P::STEP_H;
    (void)o0; (void)o1;
#pragma omp simd
    for (long e = 0; e < (COUNT ? COUNT : count); ++e) {
      const long o2 = w + e;
      const T acc = sums[e];
@STORE@
    }
  }
};

}  // namespace
"""


def _print_array(kind: str, name: str, values: list[int]) -> str:
    """C++ definition of a constant array."""
    return f"static constexpr {kind} {name}[] = {{{', '.join(map(str, values or [0]))}}};"


def _parts_text(found: Geometry, layout: Staging, tile_rows: int) -> tuple[str, int]:
    """(C++ structs of the parts, number of elements of the packed weights)."""
    out_tiles = math.ceil(found.out_per_group / tile_rows)
    tables = tap_tables(found, layout)
    phases = len(found.axes[2].parts)
    lines: list[str] = []
    at = 0
    for index, part in enumerate(found.parts[::phases]):
        fields = []
        for axis, letter in zip(part[:2], "DH", strict=True):
            fields.append(
                f"static constexpr long START_{letter} = {axis.start}, STEP_{letter} = {axis.step}, "
                f"COUNT_{letter} = {axis.count};"
            )
        fields.append(f"static constexpr long COUNT_W = {found.axes[2].count};")
        for phase, (offsets, taps) in enumerate(tables[index * phases : (index + 1) * phases]):
            sub = [f"static constexpr long TAPS = {len(taps)}, WEIGHTS = {at};"]
            sub += [_print_array("long", "TAP", offsets), _print_array("long", "TAP_INDEX", taps)]
            fields += [f"struct sub{phase} {{", *("  " + line for line in sub), "};"]
            at += found.kernel.groups * out_tiles * found.in_per_group * len(taps) * tile_rows
        fields.append(f"typedef conv::Subs<{', '.join(f'sub{phase}' for phase in range(phases))}> SUBS;")
        lines += [f"struct part{index} {{", *("  " + line for line in fields), "};"]
    return indent(lines, 1), at


def _weight_text(found: Geometry, plan: Plan) -> str:
    """C text that reads the weight of (group, out, in, tap)."""
    taps = math.prod(found.kernel.kernel)
    inner, outer = found.in_per_group, found.out_per_group
    where = f"((group * {outer} + out) * {inner} + in) * {taps} + tap"
    if found.kernel.transposed:
        where = f"((group * {inner} + in) * {outer} + out) * {taps} + tap"
    name = found.kernel.weight
    return code.load_text(f"b_{name}[{where}]", plan.buffers[name].dtype)


def _print_struct(shape: _Shape, plan: Plan, constants: dict[str, int], parts: str) -> tuple[str, list[str]]:
    """(C++ struct of the kernel, names of the buffers it points to)."""
    found = shape.found
    kernel = found.kernel
    written = [store.buffer for store in kernel.stores]
    epilogue = code.loaded_buffers(store.value for store in kernel.stores)
    buffers = list(dict.fromkeys([kernel.x, kernel.weight, *epilogue, *written]))
    names = ["image", "channel", "d", "h"]
    x_view = View(kernel.x_offset, kernel.x_strides[:-1])
    step = f"(w + e * {found.axes[2].in_step}) * {kernel.x_strides[-1]}"
    pointer = ""
    if shape.in_place:
        origin = code.offset_by(["image", "channel"])(View(kernel.x_offset, kernel.x_strides[:2]))
        body = f"return b_{kernel.x} + {origin};"
        pointer = f"\n  GEMM_INLINE const T* x(long image, long channel) const {{ {body} }}\n"
    phases = found.phases
    tables = [_print_array("long", f"PHASE_{letter}", [p[i] for p in phases]) for i, letter in enumerate("DHW")]
    scalars = [f"static constexpr long {key} = {value};" for key, value in constants.items()]
    holes = {
        "NAME": kernel.name,
        "T": shape.float_type,
        "VB": str(shape.lanes * shape.float_bytes),
        "CONSTANTS": indent([*scalars, *tables], 1),
        "PARTS": parts,
        "MEMBERS": indent(code.declare_members(buffers, plan, written), 1),
        "X_TYPE": code.storage_type(plan.buffers[kernel.x].dtype),
        "X_OFFSET": code.offset_by(names)(x_view),
        "X_ELEMENT": code.load_text(f"from[{step}]", plan.buffers[kernel.x].dtype),
        "POINTER": pointer,
        "WEIGHT": _weight_text(found, plan),
        "EACH_PART": indent(
            [f"f(part{index}{{}});" for index in range(len(found.parts) // len(found.axes[2].parts))], 2
        ),
        "LOCALS": indent(code.declare_local_pointers(dict.fromkeys([*epilogue, *written]), plan, written), 2),
        "STORE": indent(code.store_lines(kernel.stores, plan, ["image", "channel", "o0", "o1", "o2"]), 3),
        "X": kernel.x,
    }
    return fill(_STRUCT, holes), buffers


def _choose_constants(shape: _Shape, values: dict[str, Choice]) -> tuple[dict[str, int], Staging]:
    """(constants of the struct by name, layout of the staged input) for the chosen values."""
    found, kernel = shape.found, shape.found.kernel
    tile = tiling.RegisterTile.parse(str(values["tile"]))
    default = _default_band(shape)
    counts = tuple(axis.count for axis in found.axes)
    band = (
        int(values.get("band_depth", 1)),
        int(values.get("band_rows", 1)),
        int(values.get("band_columns", default[2] if counts[1] == 1 else counts[2])),
    )
    width = tile.vectors * shape.lanes
    patches = values.get("algorithm") == "implicit_gemm"
    copied = not shape.in_place or patches or _least_pixels(shape, band) < width
    layout = staging(found, band, copied)
    images = int(values.get("block_images", 1)) if patches else 1
    span = band[2] if patches else layout.pitch
    pixels = images * band[1] * span if patches else (band[1] - 1) * span + band[2]
    channels = min(int(values.get("block_channels", found.in_per_group)), found.in_per_group)
    out_tiles = math.ceil(found.out_per_group / tile.rows)
    block_out = min(int(values.get("block_out", out_tiles)), out_tiles)
    groups = int(values.get("block_groups", 1))
    outer_channels = values.get("order") == "channels_outer"
    tiles_kept = math.ceil(pixels / width) if outer_channels else 1
    tasks = math.prod(math.ceil(count / size) for count, size in zip(counts, band, strict=True))
    tasks *= math.ceil(kernel.batch / images) * math.ceil(kernel.groups / groups) * math.ceil(out_tiles / block_out)
    image_stride = found.in_per_group * layout.channel_stride + layout.shared_zeros if copied else 0
    stage = images * image_stride + 2 * width + shape.lanes if copied else 0
    phases = len(found.axes[2].parts)
    kept = phases if phases > 1 or channels < found.in_per_group else 0
    constants = {
        **{"BATCH": kernel.batch, "GROUPS": kernel.groups, "IC": found.in_per_group, "OC": found.out_per_group},
        **{"MR": tile.rows, "NV": tile.vectors, "BLOCK_IC": channels, "BLOCK_OUT": block_out, "BLOCK_GROUPS": groups},
        **{"BLOCK_IMAGES": images, "IMAGE_STRIDE": image_stride},
        **{"OUT_W": kernel.output_size[-1], "COUNT_D": counts[0], "COUNT_H": counts[1], "COUNT_W": counts[2]},
        **{"BAND_D": band[0], "BAND_H": band[1], "BAND_W": band[2]},
        **{f"IN_{letter}": axis.in_size for letter, axis in zip("DHW", found.axes, strict=True)},
        **{f"IN_STEP_{letter}": axis.in_step for letter, axis in zip("DHW", found.axes, strict=True)},
        **{f"LEAD_{letter}": axis.lead for letter, axis in zip("DHW", found.axes, strict=True)},
        **{"PHASES": len(found.phases), "PITCH": layout.pitch, "DEPTH_STRIDE": layout.depth_stride},
        **{"CHANNEL_STRIDE": layout.channel_stride, "STAGE_D": layout.stage_depth, "STAGE_H": layout.stage_height},
        **{"SHARED_ZEROS": layout.shared_zeros, "COPY": int(copied), "PATCHES": int(patches)},
        **{"CHANNELS_OUTER": int(outer_channels), "DYNAMIC": int(values.get("schedule", "static") == "dynamic")},
        **{"TASKS": tasks, "THREADS": min(shape.threads, tasks), "PREPARED": int(shape.prepared)},
        "STAGE_SPACE": round_up(stage, 16),
        "SUM_SPACE": round_up(kept * tiles_kept * block_out * tile.rows * width, 16),
        "PANEL_SPACE": round_up(channels * found.most_taps * width + shape.lanes, 16) if patches else 0,
    }
    return constants, layout


def _least_pixels(shape: _Shape, band: tuple[int, int, int]) -> int:
    """Number of pixels in the smallest band. If the input is read in place, a tile must fit into every band."""
    counts = [axis.count for axis in shape.found.axes]
    rows, columns = ((count - 1) % size + 1 for count, size in zip(counts[1:], band[1:], strict=True))
    return (rows - 1) * staging(shape.found, band, False).pitch + columns


def print_conv(kernel: ConvKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a convolution or transposed convolution with its epilogue.

    `choices` may hold:
    - "algorithm": "direct" reads shifted pixels in place, "implicit_gemm" gathers patches into panels first
    - "tile": output channels x pixel vectors in registers, such as "6x2"
    - "block_channels": input channels that are summed at a time
    - "order": "pixels_outer" or "channels_outer", which operand stays in cache
    - "band_depth", "band_rows", "band_columns": output slices, rows or columns of a task
    - "block_images": images whose pixels share tiles
    - "block_out", "block_groups": tiles of output channels, or groups, of a task
    - "schedule": "static" or "dynamic"
    A depthwise convolution with contiguous channels has the algorithms "channels" (depthwise.py) and "direct".
    A value that is not legal for this kernel gives way to the default."""
    tuning = Tuning(choices)
    if runs_along_channels(kernel, device):
        meaning = "vectors along channels that lie side by side, or along the pixels of each"
        if tuning.text("algorithm", ("channels", "direct"), "channels", "algorithm", meaning) == "channels":
            return print_depthwise(kernel, plan, device, tuning)
    shape = _describe_shape(kernel, plan, device)
    tunables = _list_tunables(shape, choices)
    values = tiling.pick(tunables, choices)
    constants, layout = _choose_constants(shape, values)
    parts, weights = _parts_text(shape.found, layout, constants["MR"])
    constants["WEIGHT_SPACE"] = 0 if shape.prepared else round_up(weights, 16)
    text, buffers = _print_struct(shape, plan, constants, parts)
    packed = f"{kernel.name}_packed"
    source = f"({shape.float_type}*)b_{packed}" if shape.prepared else "nullptr"
    call = [f"conv_{kernel.name} g;", *(f"g.b_{name} = b_{name};" for name in buffers)]
    call.append(f"conv::run(g, {source}, workspace);")
    prepare = [f"conv_{kernel.name} g;", f"g.b_{kernel.weight} = b_{kernel.weight};", f"conv::prepare(g, {source});"]
    own = constants["STAGE_SPACE"] + constants["SUM_SPACE"] + constants["PANEL_SPACE"]
    elements = constants["WEIGHT_SPACE"] + constants["THREADS"] * own
    return PrintedKernel(
        functions=text,
        shared=(read_library_text("cpu/contractions/gemm.cpp"), read_library_text("cpu/contractions/conv.cpp")),
        call="{\n" + indent(call, 1) + "\n}",
        template="conv",
        choices={**values, **tuning.values},
        tunables=(*tuning.tunables, *tunables),
        workspace_bytes=elements * shape.float_bytes + 64,
        prepare={packed: "{\n" + indent(prepare, 1) + "\n}"} if shape.prepared else {},
        prepared_sizes={packed: max(1, weights) * shape.float_bytes // 4} if shape.prepared else {},
        labels=("prepared_weights",) if shape.prepared else (),
    )
