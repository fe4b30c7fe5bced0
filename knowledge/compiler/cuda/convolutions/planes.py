"""1x1 convolutions in CUDA from the planes of the input: no copy of it, no gathering.

With stride 1 and no padding the pixels of a channel are a row of a matrix, whose tiles TMA brings into shared memory.
All weights of a block's channels stay there too, so the input is read once for each tile of channels. A lane stores
four neighbouring pixels: planes of megabytes are each in memory pages of their own, and a store that touches many of
them, with few bytes each, waits for them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import IEEE, LABELS, PRECISION, has_wgmma
from foundry.knowledge.compiler.cuda.contractions.tiled import epilogue_lines
from foundry.knowledge.compiler.cuda.convolutions.channels_last_packing import fill_text
from foundry.knowledge.compiler.cuda.convolutions.space import ConvSpace
from foundry.knowledge.compiler.cuda.launches import Launch, max_shared_bytes
from foundry.knowledge.compiler.cuda.space import indent, make_tunable, pick, pick_number
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import PrintedKernel, Tunable
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower

_PIXELS = 128  # pixels of a tile
_STAGE_BYTES = 32 * (_PIXELS + 8) * 4  # 32 channels of a tile's pixels
_COLUMNS = (16, 24, 32, 48, 64, 96, 128)  # channels of one instruction
_VALUES: dict[str, tuple[int, ...]] = {
    "tile_channels": _COLUMNS,
    "warpgroups": (1, 2, 3, 4),
    "stages": (2, 3, 4, 6, 8),
}
_MEANING = {
    "tile_channels": ("tile", "output channels of a tile: larger reads the input less often"),
    "warpgroups": ("parallel", "warpgroups of a block, with tiles of their own: one stores while others multiply"),
    "stages": (
        "memory",
        "slices of 32 channels in flight for a warpgroup: more latency is hidden, more shared memory",
    ),
}
_PRECISION_MEANING = "tf32: 11 significant bits; tf32x3 and ieee: as accurate as float32, by another algorithm"
LANES, ROWS = "lanes", "rows"  # sums are stored by the lanes that have them, or by warps, a row of pixels at a time
_MOST_CHANNELS = 128  # input channels; for more an H200 is faster by other algorithms
_LEAST_TILES = 4  # tiles of a multiprocessor; with so many the weights that each block reads matter little


@dataclass(frozen=True)
class PlaneTiling:
    """A block's tiles by the tunables: output channels of a tile, warpgroups of a block, stages of each, and "lanes" or
    "rows" that store sums."""

    tile_channels: int
    warpgroups: int
    stages: int
    stores: str

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warpgroups * 128

    def shared_bytes(self, channels: int) -> int:
        """Shared memory of a block in bytes, with the weights of `channels` input channels."""
        chunk = next(chunk for chunk in (32, 16, 8) if self.tile_channels % chunk == 0)
        slab = chunk * (_PIXELS + 4) * 4 if self.stores == ROWS else 0
        ring = self.stages * (_STAGE_BYTES + 8)
        return math.ceil(channels / 32) * self.tile_channels * 128 + self.warpgroups * (ring + slab)

    def is_legal(self, channels: int, arch: str) -> bool:
        """True if registers and shared memory suffice for `channels` input channels."""
        registers = self.tile_channels + 96
        return registers * self.threads <= 65536 and self.shared_bytes(channels) <= max_shared_bytes(arch)


def fits(space: ConvSpace) -> bool:
    """True for a pointwise float32 convolution of one group, rows of pixels aligned to 16 bytes, and TF32 allowed.

    Its weights must fit shared memory beside two stages."""
    kernel, buffers = space.kernel, space.plan.buffers
    if kernel.groups > 1 or kernel.transposed or kernel.tail or space.plan.ieee_only or space.inside != "int":
        return False
    if {kernel.dtype, buffers[kernel.x].dtype, buffers[kernel.weight].dtype} != {"float32"}:
        return False
    shape = zip(kernel.kernel, kernel.stride, kernel.padding, strict=True)
    is_pointwise = all(found == (1, 1, 0) for found in shape) and kernel.input_size == kernel.output_size
    is_flat = kernel.output_size[:2] == (1, 1) and kernel.x_strides[-1] == 1
    steps = (kernel.output_size[2], kernel.x_offset, *kernel.x_strides[:2])
    if not is_pointwise or not is_flat or any(step % 4 for step in steps) or kernel.in_channels % 8:
        return False
    return PlaneTiling(_COLUMNS[0], 1, 2, LANES).is_legal(kernel.in_channels, "sm_90")


def runs_on(arch: str) -> bool:
    """True if the device has wgmma instructions."""
    return has_wgmma(arch)


def pays(space: ConvSpace, cores: int) -> bool:
    """True if there are so few channels that reading the input takes longest, and enough tiles for the device."""
    kernel = space.kernel
    tiles = kernel.batch * math.ceil(kernel.output_size[2] / _PIXELS)
    return kernel.in_channels <= _MOST_CHANNELS and tiles >= _LEAST_TILES * cores


def takes(choices: dict[str, Choice]) -> bool:
    """True if the chosen precision is TF32, the only one here, or none was chosen."""
    return choices.get(PRECISION, "tf32") == "tf32"


def _default_tiling(space: ConvSpace, arch: str) -> PlaneTiling:
    """The widest tiles whose weights leave room for two warpgroups. Three are worth more than stages. Raises
    CannotLower if no tile leaves room."""
    channels, out = space.kernel.in_channels, space.kernel.out_channels
    columns = min((n for n in _COLUMNS if n >= out), default=_COLUMNS[-1])
    shapes = [
        PlaneTiling(wide, groups, stages, LANES)
        for wide in (columns, 64, 32, 16)
        for groups, stages in ((3, 2), (2, 4), (2, 3), (2, 2))
        if wide <= columns
    ]
    found = next((shape for shape in shapes if shape.is_legal(channels, arch)), None)
    if found is None:
        raise CannotLower("weights fill more shared memory than there is")
    return found


def choose_planes(
    space: ConvSpace, device: Device, choices: dict[str, Choice]
) -> tuple[PlaneTiling, tuple[Tunable, ...]]:
    """(tiling, its tunables, the precision among them). Choices that are not legal together give way to the default
    tiling."""
    default, channels = _default_tiling(space, device.arch), space.kernel.in_channels
    most = max(16, 2 * space.kernel.out_channels)
    values = {name: tuple(v for v in found if name != "tile_channels" or v < most) for name, found in _VALUES.items()}
    wanted = {name: pick_number(choices, name, values[name], getattr(default, name)) for name in values}
    shape = PlaneTiling(**wanted, stores=str(pick(choices, "stores", (LANES, ROWS), default.stores)))
    if not shape.is_legal(channels, device.arch):
        shape = default
    tunables = []
    for name, (aspect, meaning) in _MEANING.items():
        legal = [v for v in values[name] if replace(shape, **{name: v}).is_legal(channels, device.arch)]  # type: ignore[arg-type]
        legal = sorted({*legal, getattr(default, name)})
        if len(legal) > 1:
            tunables.append(make_tunable(name, legal, getattr(default, name), aspect, meaning))
    meaning = "lanes: each lane stores its own sums; rows: these go through shared memory, and a warp stores a row"
    precision = make_tunable(PRECISION, ("tf32", "tf32x3", IEEE), "tf32", PRECISION, _PRECISION_MEANING)
    return shape, (precision, *tunables, make_tunable("stores", (LANES, ROWS), default.stores, "memory", meaning))


def _print_main(space: ConvSpace, device: Device, shape: PlaneTiling) -> tuple[str, Launch]:
    """(CUDA text, launch) of the kernel."""
    kernel = space.kernel
    pixels, out = kernel.output_size[2], kernel.out_channels
    tiles_n = math.ceil(out / shape.tile_channels)
    tiles = kernel.batch * math.ceil(pixels / _PIXELS)
    acc = "sums.at[j]" if shape.stores == ROWS else "acc[j / 2][h * 4 + j % 2 * 2 + side]"
    body = epilogue_lines(space.outputs(), kernel.stores, space.plan, acc=acc, vector=4, guard="", element_guard="")
    exists = [f"channel < {out}"] if out % shape.tile_channels else []
    exists += [f"p2 < {pixels}"] if pixels % _PIXELS else []
    stores: dict[str, object] = {"EXISTS": " && ".join(exists) or "true", "EPILOGUE": indent(body, 5)}
    signature, arguments = space.signature((kernel.weight,))
    values = {
        "NAME": space.name,
        "PARAMETERS": signature,
        **{"THREADS": shape.threads, "BN": shape.tile_channels, "STAGES": shape.stages, "GROUPS": shape.warpgroups},
        **{"C": kernel.in_channels, "N": out, "TILES_N": tiles_n, "PIXELS": pixels, "BATCH": kernel.batch},
        "SLABS": int(shape.stores == ROWS),
        "WEIGHT": kernel.weight,
        "ORIGIN": space.origin("photo", "0"),
        "STRIDE_C": kernel.x_strides[1],
        "IMAGE": space.image,
        "STORES": fill_text(f"planes_{shape.stores}.cu", stores).rstrip("\n"),
    }
    at_once = max(1, min(math.ceil(tiles / shape.warpgroups), device.cores // tiles_n))
    grid, block = (at_once * tiles_n, 1, 1), (shape.threads, 1, 1)
    launch = Launch(space.name, grid, block, tuple(arguments), shape.shared_bytes(kernel.in_channels))
    return fill_text("planes.cu", values), launch


def print_algorithm(space: ConvSpace, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """The printed kernel, with one launch."""
    shape, tunables = choose_planes(space, device, choices)
    text, launch = _print_main(space, device, shape)
    names = ("mma", "mma_tf32", "wgmma", "wgmma_tf32", "wgmma_held_tf32", "bulk")
    values: dict[str, Choice] = {PRECISION: "tf32", **asdict(shape)}
    return PrintedKernel(
        functions=text,
        call=cuda_launch.encode([launch]),
        template="conv",
        choices={item.name: values[item.name] for item in tunables},
        tunables=tunables,
        launches=1,
        labels=LABELS["tf32"],
        arch_feature="a",
        shared=tuple(read_library_text(f"cuda/contractions/{name}.cuh") for name in names),
    )
