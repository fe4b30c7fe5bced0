"""Depthwise convolutions on the CPU with channels that are contiguous in memory, as in images of channels-last models
and in sequences. A `ConvKernel` becomes a struct over depthwise.cpp, with vectors along the channels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.compiler.cpu.contractions import gemm_code as code
from foundry.knowledge.compiler.cpu.contractions import gemm_tiles as tiling
from foundry.knowledge.compiler.cpu.space import indent
from foundry.knowledge.compiler.file.texts import fill, read_library_text
from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.conv_geometry import geometry
from foundry.knowledge.compiler.ir.kernels import ConvKernel, Plan, PrintedKernel, View
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device

_PARALLEL_FLOPS = 200_000
_STAGED_BYTES = 128 * 1024  # bytes of input that a task stages: a part of L2
_PIXELS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
_VECTORS = (1, 2, 3, 4)

_STRUCT = """
namespace {

struct depthwise_@NAME@ {
  typedef @T@ T;
  static constexpr int VB = @VB@;
@CONSTANTS@
@MEMBERS@

  // COUNT neighbouring channels of one input.
  template <long COUNT>
  GEMM_INLINE void x_run(long image, long channel, long h, long w, T* out) const {
    const @X_TYPE@* __restrict__ from = b_@X@ + @X_OFFSET@;
#pragma omp simd
    for (long e = 0; e < COUNT; ++e) out[e] = (T)(@X_ELEMENT@);
  }

  GEMM_INLINE T weight(long channel, long tap) const { return (T)(@WEIGHT@); }

  // The epilogue of `count` (a constant if COUNT) channels of a pixel.
  template <long COUNT>
  GEMM_INLINE void store(long image, long first, long o1, long o2, long count, const T* sums) const {
@LOCALS@
#pragma omp simd
    for (long e = 0; e < (COUNT ? COUNT : count); ++e) {
      const long channel = first + e;
      const T acc = sums[e];
@STORE@
    }
  }
};

}  // namespace
"""


@dataclass(frozen=True)
class _Shape:
    """A depthwise convolution over (height, width), and what its tunables depend on."""

    kernel: ConvKernel  # three spatial dimensions, the first of size 1
    float_type: str
    float_bytes: int
    lanes: int
    threads: int
    prepared: bool
    device: Device

    @property
    def ring(self) -> int:
        """Number of input rows that the taps of one output row span."""
        return (self.kernel.kernel[1] - 1) * self.kernel.dilation[1] + 1

    def positions(self, columns: int) -> int:
        """Number of positions in an input row that the taps of `columns` outputs span."""
        return (columns - 1) * self.kernel.stride[2] + (self.kernel.kernel[2] - 1) * self.kernel.dilation[2] + 1

    def bytes_staged(self, columns: int, channels: int) -> int:
        """Bytes of input that a task stages for `columns` outputs of a row and `channels` channels."""
        return self.ring * self.positions(columns) * channels * self.float_bytes


def runs_along_channels(kernel: ConvKernel, device: Device) -> bool:
    """True if this form fits: one output channel for each input channel, and channels contiguous in memory."""
    depthwise = kernel.groups == kernel.in_channels == kernel.out_channels and not kernel.transposed
    flat = len(kernel.kernel) < 3 or kernel.kernel[0] == kernel.input_size[0] == kernel.output_size[0] == 1
    lanes = device.vector_bytes // tiling.element_type(kernel.dtype)[1]
    together = kernel.x_strides[1] == 1 and kernel.stores[0].view.strides[1] == 1
    return depthwise and flat and together and kernel.out_channels >= max(2, lanes)


def _describe_shape(kernel: ConvKernel, plan: Plan, device: Device) -> _Shape:
    """The kernel with its C type, vector lanes and threads on `device`; small kernels get one thread."""
    float_type, float_bytes = tiling.element_type(kernel.dtype)
    flops = 2 * kernel.batch * kernel.out_channels * math.prod(kernel.output_size) * math.prod(kernel.kernel)
    return _Shape(
        geometry(kernel).kernel,
        float_type,
        float_bytes,
        lanes=max(1, device.vector_bytes // float_bytes),
        threads=max(1, device.cores) if flops >= _PARALLEL_FLOPS else 1,
        prepared=plan.buffers[kernel.weight].role in ("parameter", "constant", "prepared"),
        device=device,
    )


def _tile_cost(shape: _Shape, tile: tiling.RegisterTile) -> float:
    """Estimated cycles of a tap of one row: a load of the input for each sum, one of the weights for each vector."""
    channels, width = shape.kernel.out_channels, shape.kernel.output_size[-1]
    sums = tile.rows * tile.vectors
    cycles = max(sums + tile.vectors, 2 * tiling.FMA_LATENCY_CYCLES) / 2
    return math.ceil(width / tile.rows) * math.ceil(channels / (tile.vectors * shape.lanes)) * cycles


def _list_tiles(shape: _Shape) -> list[str]:
    """At most eight register tiles (pixels x vectors of channels), best first; of equals that with longer runs.

    At most half of the registers hold sums: with more, GCC moves them about and takes 1.5 times as long (measured on
    Zen 5).
    """
    registers = tiling.vector_registers(shape.device)
    fitting = [
        tiling.RegisterTile(pixels, vectors)
        for pixels in _PIXELS
        for vectors in _VECTORS
        if pixels <= shape.kernel.output_size[-1] and vectors * shape.lanes <= shape.kernel.out_channels
        if pixels * vectors <= registers // 2
    ]
    return [tile.text for tile in sorted(fitting, key=lambda tile: (_tile_cost(shape, tile), -tile.vectors))[:8]]


def _choose_columns(shape: _Shape, tuning: Tuning, tile: tiling.RegisterTile) -> int:
    """Number of output columns of a task: whole rows, unless a ring of one block would not stay in L2."""
    width, block = shape.kernel.output_size[2], tile.vectors * shape.lanes
    columns = width
    while columns > 4 * tile.rows and shape.bytes_staged(columns, block) > _STAGED_BYTES:
        columns = round_up(math.ceil(columns / 2), tile.rows)
    widths = [value for value in (32, 64, 128, 256, 512, 1024) if value <= width]
    meaning = "output columns a task stages"
    return tuning.number("band_columns", sorted({columns, *widths}), columns, "memory", meaning)


def _choose_channels(shape: _Shape, tuning: Tuning, tile: tiling.RegisterTile) -> int:
    """Number of channels of a task; by default one block, whose ring of rows stays in L1."""
    block = tile.vectors * shape.lanes
    blocks = math.ceil(shape.kernel.out_channels / block)
    values = sorted({block * math.ceil(blocks / count) for count in range(1, blocks + 1)})
    values = [value for value in values if value == block or value >= 64]
    meaning = (
        "channels a task stages: many read long runs of memory, few keep the rows that taps read in a nearer cache"
    )
    return tuning.number("block_channels", values, values[0], "memory", meaning)


def _choose_rows(shape: _Shape, tuning: Tuning, others: int) -> int:
    """Number of output rows of a task; `others`: tasks if rows are not divided.

    More are better, because the first row of a task must fill the ring.
    """
    height = shape.kernel.output_size[1]
    wanted = math.ceil(4 * shape.threads / others) if shape.threads > 1 else 1
    rows = tiling.split(height, max(min(height, 2 * shape.ring), math.ceil(height / wanted)), 1)
    values = [value for value in (1, 2, 4, 7, 8, 14, 16, 28, 32, 56) if value <= height]
    return tuning.number("band_rows", sorted({rows, *values}), rows, "parallel", "output rows a task walks down")


def _choose_constants(shape: _Shape, tuning: Tuning) -> dict[str, int]:
    """Chooses tile, band and schedule, declaring each in `tuning`, and returns the kernel text's constants by name."""
    kernel = shape.kernel
    tiles = _list_tiles(shape)
    meaning = "pixels x vectors of channels in registers: weights are loaded once for the pixels"
    tile = tiling.RegisterTile.parse(tuning.text("tile", tiles, tiles[0], "tile", meaning))
    columns = _choose_columns(shape, tuning, tile)
    channels = _choose_channels(shape, tuning, tile)
    tasks = kernel.batch * math.ceil(kernel.out_channels / channels) * math.ceil(kernel.output_size[2] / columns)
    rows = _choose_rows(shape, tuning, tasks)
    tasks *= math.ceil(kernel.output_size[1] / rows)
    dynamic = False
    if shape.threads > 1:
        meaning = "balance of tasks against their order"
        dynamic = tuning.text("schedule", ("dynamic", "static"), "dynamic", "parallel", meaning) == "dynamic"
    block = tile.vectors * shape.lanes
    width = shape.positions(round_up(columns, tile.rows))
    weights = round_up(kernel.out_channels, block) * math.prod(kernel.kernel)
    each = zip("HW", kernel.kernel[1:], kernel.stride[1:], kernel.dilation[1:], kernel.padding[1:], strict=True)
    return {
        **{"CHANNELS": kernel.out_channels, "NP": tile.rows, "NV": tile.vectors, "BLOCK_CHANNELS": channels},
        **{"IN_H": kernel.input_size[1], "IN_W": kernel.input_size[2]},
        **{"OUT_H": kernel.output_size[1], "OUT_W": kernel.output_size[2], "BAND_H": rows, "BAND_W": columns},
        **{
            f"{name}_{axis}": value
            for axis, *values in each
            for name, value in zip(("TAPS", "STRIDE", "DILATION", "PADDING"), values, strict=True)
        },
        **{
            "STAGE_W": width,
            "STAGE_SPACE": round_up(shape.ring * width * min(channels, kernel.out_channels), 16),
        },
        **{"TASKS": tasks, "THREADS": min(shape.threads, tasks), "DYNAMIC": int(dynamic)},
        **{"PREPARED": int(shape.prepared), "WEIGHTS": weights},
    }


def _print_struct(shape: _Shape, plan: Plan, constants: dict[str, int]) -> tuple[str, list[str]]:
    """(C++ struct of the kernel, names of the buffers it points to)."""
    kernel = shape.kernel
    written = [store.buffer for store in kernel.stores]
    epilogue = code.loaded_buffers(store.value for store in kernel.stores)
    buffers = list(dict.fromkeys([kernel.x, kernel.weight, *epilogue, *written]))
    batch, channel, _, *spatial = kernel.x_strides
    x_view = View(kernel.x_offset, (batch, channel, *spatial))
    taps = math.prod(kernel.kernel)
    holes = {
        "NAME": kernel.name,
        "T": shape.float_type,
        "VB": str(shape.lanes * shape.float_bytes),
        "CONSTANTS": indent([f"static constexpr long {key} = {value};" for key, value in constants.items()], 1),
        "MEMBERS": indent(code.declare_members(buffers, plan, written), 1),
        "X_TYPE": code.storage_type(plan.buffers[kernel.x].dtype),
        "X_OFFSET": code.offset_by(["image", "channel", "h", "w"])(x_view),
        "X_ELEMENT": code.load_text("from[e]", plan.buffers[kernel.x].dtype),
        "WEIGHT": code.load_text(f"b_{kernel.weight}[channel * {taps} + tap]", plan.buffers[kernel.weight].dtype),
        "LOCALS": indent(code.declare_local_pointers(dict.fromkeys([*epilogue, *written]), plan, written), 2),
        "STORE": indent(code.store_lines(kernel.stores, plan, ["image", "channel", "0", "o1", "o2"]), 3),
        "X": kernel.x,
    }
    return fill(_STRUCT, holes), buffers


def print_depthwise(kernel: ConvKernel, plan: Plan, device: Device, tuning: Tuning) -> PrintedKernel:
    """C++ of a convolution for which `runs_along_channels` holds, with its epilogue.

    Declares in `tuning`: "tile" (pixels x vectors of channels, such as "8x2"), "block_channels", "band_rows",
    "band_columns" and "schedule"."""
    shape = _describe_shape(kernel, plan, device)
    constants = _choose_constants(shape, tuning)
    constants["WEIGHT_SPACE"] = 0 if shape.prepared else round_up(constants["WEIGHTS"], 16)
    text, buffers = _print_struct(shape, plan, constants)
    name, packed = kernel.name, f"{kernel.name}_packed"
    source = f"({shape.float_type}*)b_{packed}" if shape.prepared else "nullptr"
    call = [f"depthwise_{name} g;", *(f"g.b_{each} = b_{each};" for each in buffers)]
    call.append(f"depthwise::run(g, {source}, workspace);")
    prepare = [f"depthwise_{name} g;", f"g.b_{kernel.weight} = b_{kernel.weight};"]
    prepare.append(f"depthwise::prepare(g, {source});")
    elements = constants["WEIGHT_SPACE"] + constants["THREADS"] * constants["STAGE_SPACE"]
    return PrintedKernel(
        functions=text,
        shared=(read_library_text("cpu/contractions/gemm.cpp"), read_library_text("cpu/contractions/depthwise.cpp")),
        call="{\n" + indent(call, 1) + "\n}",
        template="conv",
        choices=tuning.values,
        tunables=tuple(tuning.tunables),
        workspace_bytes=elements * shape.float_bytes + 64,
        prepare={packed: "{\n" + indent(prepare, 1) + "\n}"} if shape.prepared else {},
        prepared_sizes={packed: constants["WEIGHTS"] * shape.float_bytes // 4} if shape.prepared else {},
        labels=("prepared_weights",) if shape.prepared else (),
    )
