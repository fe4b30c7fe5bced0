"""Convolutions in CUDA without tiles (`direct.cu`): for groups of few channels, which are bound by memory.

Along each axis a table says which inputs a thread's outputs read, so one text serves strides, dilations and the phases
of a transposed convolution. Outputs of neighbouring phases are in one thread and are stored as one vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches
from foundry.knowledge.compiler.cuda.contractions.tiled import epilogue_lines
from foundry.knowledge.compiler.cuda.convolutions.space import ConvSpace
from foundry.knowledge.compiler.cuda.dialect import element_type
from foundry.knowledge.compiler.cuda.launches import Launch
from foundry.knowledge.compiler.cuda.space import WIDEST_BYTES, indent, make_tunable, pick, pick_number
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.conv_geometry import Axis
from foundry.knowledge.compiler.ir.kernels import PrintedKernel, Tunable
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import ITEM_BYTES

THREADS = (64, 128, 256, 512)
WEIGHTS = ("cached", "shared")
_MOST_SUMS = 64  # 32-bit words of sums in the registers of a thread
_DEFAULT_SUMS = 32  # sums of a thread; so many leave registers for two blocks of a multiprocessor
_MOST_WINDOW = 80  # 32-bit words of inputs in registers
_MOST_STAGED_BYTES = 40 * 1024  # bytes of weights in shared memory
_FEW_COLOURS = 4
_MOST_TOGETHER = 48  # 32-bit words of inputs of all lines in registers
_MOST_KEPT = 50  # 32-bit words of weights in registers
_MOST_PRODUCTS = 1024  # products of one input channel and depth; if there are more, lines are a loop
_BLOCK_WIDTH = 32  # threads along the width: with four outputs each, whole lines of the caches


@dataclass(frozen=True)
class Reach:
    """Inputs that `count` neighbouring outputs of an axis read; the first output's number is a multiple of `count`."""

    advance: int  # number of inputs from one such run of outputs to the next
    positions: tuple[int, ...]  # inputs, counted from the run's own first
    under: tuple[tuple[int, ...], ...]  # index of the position that each tap reads for each output; -1 for none


def find_reach(axis: Axis, taps: int, count: int) -> Reach:
    """The inputs that `count` neighbouring outputs of an axis read. `count` must be a multiple of the phases' step."""
    step = axis.parts[0].step
    found: dict[tuple[int, int], int] = {}
    for output in range(count):
        part = axis.parts[output % step] if output % step < len(axis.parts) else None
        for tap in part.taps if part else ():
            found[tap.index, output] = (output // step + tap.shift) * axis.in_step + tap.phase - axis.lead
    positions = tuple(sorted(set(found.values()))) or (0,)
    place = {position: index for index, position in enumerate(positions)}
    under = tuple(
        tuple(place[found[tap, output]] if (tap, output) in found else -1 for output in range(count))
        for tap in range(taps)
    )
    return Reach(count // step * axis.in_step, positions, under)


@dataclass(frozen=True)
class Shape:
    """The tunables' values: outputs of a thread along the width and height, its output channels, and threads of a
    block."""

    outputs: int
    rows: int
    channels: int
    threads: int
    staged: bool = False  # weights in shared memory


def _count_sums(shape: Shape) -> int:
    """Number of outputs of a thread."""
    return shape.outputs * shape.rows * shape.channels


def _phase_steps(space: ConvSpace) -> tuple[int, int]:
    """(distance between outputs of one phase along the height, along the width)."""
    return space.found.axes[1].parts[0].step, space.found.axes[2].parts[0].step


def _is_legal(space: ConvSpace, shape: Shape) -> bool:
    """True if a thread has whole phases, and registers for its sums and window."""
    words = space.item_bytes // 4
    high, wide = _phase_steps(space)
    if shape.outputs % wide or shape.rows % high or space.found.out_per_group % shape.channels:
        return False
    if shape.staged and space.found.in_per_group * space.taps * shape.channels * space.item_bytes > _MOST_STAGED_BYTES:
        return False
    window = len(_place_loads(space, shape.outputs)[0]) * _load_vector(space, shape.outputs)
    return _count_sums(shape) * words <= _MOST_SUMS and window * words <= _MOST_WINDOW


def _load_vector(space: ConvSpace, outputs: int) -> int:
    """Number of inputs in one load: aligned to its size, and wholly inside or outside its line."""
    kernel, axis = space.kernel, space.found.axes[2]
    if kernel.x_strides[-1] != 1:
        return 1
    advance = outputs // axis.parts[0].step * axis.in_step
    numbers = (kernel.x_offset, *kernel.x_strides[:-1], kernel.input_size[-1], advance)
    vector = min(8, WIDEST_BYTES // ITEM_BYTES[space.plan.buffers[kernel.x].dtype])
    while any(value % vector for value in numbers):
        vector //= 2
    return vector


def _place_loads(space: ConvSpace, outputs: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """(first inputs of the loads of a line, the loaded element that each tap reads for each output; -1 for none)."""
    found = find_reach(space.found.axes[2], space.kernel.kernel[2], outputs)
    vector = _load_vector(space, outputs)
    starts = sorted({position // vector * vector for position in found.positions})
    place = [starts.index(position // vector * vector) * vector + position % vector for position in found.positions]
    return tuple(starts), tuple(tuple(place[at] if at >= 0 else -1 for at in row) for row in found.under)


def _store_vector(space: ConvSpace, outputs: int) -> int:
    """Number of outputs in one store; the same for all stores."""
    kernel, outside = space.kernel, space.outputs()
    widest = min(WIDEST_BYTES // ITEM_BYTES[space.plan.buffers[store.buffer].dtype] for store in kernel.stores)
    vector = min(8, max(1, widest))
    while vector > 1 and (outputs % vector or not all(outside.is_aligned(s.view, vector) for s in kernel.stores)):
        vector //= 2
    return vector


# ---------------------------------------------------------------- choices


def _multiples(step: int, values: Sequence[int]) -> list[int]:
    """The least common multiples of `step` and each of `values`, sorted."""
    return sorted({math.lcm(step, value) for value in values})


def _list_outputs(space: ConvSpace) -> list[int]:
    """Legal numbers of outputs along the width, the default first; [] if none is legal.

    The default is the widest up to a vector if loads or stores come in vectors, else the smallest: then neighbouring
    threads access neighbouring elements."""
    _, wide = _phase_steps(space)
    item = min(ITEM_BYTES[space.plan.buffers[space.kernel.x].dtype], 4)
    legal = [n for n in _multiples(wide, (1, 2, 4, 8)) if _is_legal(space, Shape(n, _phase_steps(space)[0], 1, 256))]
    legal = [n for n in legal if n == legal[0] or n < 2 * space.kernel.output_size[-1]]
    wanted = [n for n in legal if n <= max(wide, WIDEST_BYTES // item)]
    vectors = [n for n in wanted if max(_load_vector(space, n), _store_vector(space, n)) > 1]
    best = max(vectors) if vectors else wanted[0] if wanted else 0
    return [best, *(n for n in legal if n != best)] if legal else []


def fits(space: ConvSpace) -> bool:
    """True if a thread's sums and inputs fit registers, and positions in an image fit 32 bits."""
    return space.inside == "int" and bool(_list_outputs(space))


def has_few_inputs(space: ConvSpace) -> bool:
    """True for three-dimensional images of a few channels: packed pieces of them would be mostly zeros."""
    return space.found.in_per_group <= _FEW_COLOURS and space.kernel.kernel[0] > 1


def _default_shape(space: ConvSpace, device: Device) -> Shape:
    """The default shape: as many channels and rows of outputs as leave registers for two blocks and keep the device
    full."""
    outputs, high, per_group = _list_outputs(space)[0], _phase_steps(space)[0], space.found.out_per_group
    if has_few_inputs(space) and not space.kernel.transposed:
        for channels in (16, 8):
            staged = Shape(outputs, high, channels, 256, staged=True)
            if _is_legal(space, staged):
                return staged
    shape = Shape(outputs, high, 1, 256)
    for channels in (8, 7, 6, 5, 4, 3, 2):
        wider = Shape(outputs, high, channels, 256)
        if _is_legal(space, wider) and _count_sums(wider) <= _DEFAULT_SUMS:
            shape = wider
            break
    height = space.kernel.output_size[1]
    for rows in (2 * high, 4 * high):
        taller = Shape(outputs, rows, shape.channels, 256)
        threads = space.kernel.batch * space.kernel.groups * per_group // shape.channels * space.kernel.output_size[0]
        threads *= math.ceil(height / rows) * math.ceil(space.kernel.output_size[2] / outputs)
        # Fewer lines are read twice by taller threads, as long as there are enough of them for the device.
        fits_well = (
            rows <= 4 and rows < 2 * height and _count_sums(taller) <= _DEFAULT_SUMS and _is_legal(space, taller)
        )
        if fits_well and threads >= 512 * device.cores:
            shape = taller
    return shape


_MEANING = {
    "outputs": ("vector", "neighbouring outputs a thread keeps: wider loads and stores, fewer threads"),
    "rows": ("tile", "rows of outputs a thread keeps: lines of the input are read less often, more registers"),
    "channels": ("tile", "output channels a thread keeps: inputs are read less often, more registers"),
    "threads": ("parallel", "threads of a block"),
}


def _choose_shape(space: ConvSpace, device: Device, choices: dict[str, Choice]) -> tuple[Shape, tuple[Tunable, ...]]:
    """(shape, its tunables). Choices that are not legal together give way to the default shape."""
    default = _default_shape(space, device)
    high, _ = _phase_steps(space)
    most = space.kernel.output_size[1]
    values = {
        "outputs": sorted(_list_outputs(space)),
        "rows": [rows for rows in _multiples(high, (1, 2, 4, 8)) if rows == high or rows < 2 * most],
        "channels": [n for n in (1, 2, 3, 4, 5, 6, 7, 8, 16) if space.found.out_per_group % n == 0],
        "threads": list(THREADS),
    }
    present = {name: getattr(default, name) for name in values}
    wanted = present | {name: pick_number(choices, name, values[name], present[name]) for name in values}
    usual = WEIGHTS[default.staged]
    weights = str(pick(choices, "weights", WEIGHTS, usual))
    shape = Shape(**wanted, staged=weights == "shared")
    if not _is_legal(space, shape):
        shape, wanted = default, present
    tunables = []
    for name, (aspect, meaning) in _MEANING.items():
        legal = [
            value for value in values[name] if _is_legal(space, Shape(**{**wanted, name: value}, staged=shape.staged))
        ]
        legal = sorted({*legal, present[name], wanted[name]})
        if len(legal) > 1:
            tunables.append(make_tunable(name, legal, present[name], aspect, meaning))
    meaning = "where weights wait: in the caches, or in shared memory, those of a thread's channels side by side"
    tunables.append(make_tunable("weights", WEIGHTS, usual, "memory", meaning))
    return shape, tuple(tunables)


# ---------------------------------------------------------------- text


def _print_table(values: Sequence[int] | Sequence[Sequence[int]]) -> str:
    """C text of a constant table, nested if its values are tuples."""
    inner = [_print_table(value) if isinstance(value, tuple) else str(value) for value in values]
    return "{" + ", ".join(inner) + "}"


class _Direct:
    """Prints a convolution without tiles."""

    def __init__(self, space: ConvSpace, device: Device, choices: dict[str, Choice]) -> None:
        self.space, self.kernel = space, space.kernel
        self.shape, self.tunables = _choose_shape(space, device, choices)
        self.columns = math.ceil(self.kernel.output_size[2] / self.shape.outputs)
        self.row_blocks = math.ceil(self.kernel.output_size[1] / self.shape.rows)
        self.sets = self.kernel.out_channels // self.shape.channels
        self.planes = self.kernel.batch * self.kernel.output_size[0] * (1 if self.shape.staged else self.sets)
        self.block = self._block()

    def _block(self) -> tuple[int, int, int]:
        """Threads of a block along the width, along the height, and over planes: small images share a block."""
        threads = self.shape.threads

        def even(size: int, most: int) -> int:
            """The largest part if `size` is cut into equal parts of at most `most`."""
            return math.ceil(size / math.ceil(size / most))

        wide = even(self.columns, _BLOCK_WIDTH)
        high = even(self.row_blocks, max(1, threads // wide))
        return wide, high, max(1, min(64, self.planes, threads // (wide * high)))

    def _depth(self) -> list[str]:
        """C statements that define the input's depth under tap `td`, and skip the tap if that is outside the input."""
        kernel = self.kernel
        stride, padding, dilation = kernel.stride[0], kernel.padding[0], kernel.dilation[0]
        if kernel.kernel[0] == 1 and stride == 1 and padding == 0:
            return ["const int depth = p0;"] if kernel.output_size[0] > 1 else ["const int depth = 0;"]
        if kernel.transposed:
            lines = [f"const int above = p0 + {padding} - td * {dilation}, depth = above / {stride};"]
            return [*lines, f"if (above < 0 || above % {stride} || depth >= {kernel.input_size[0]}) continue;"]
        lines = [f"const int depth = p0 * {stride} - {padding} + td * {dilation};"]
        return [*lines, f"if ((unsigned)depth >= {kernel.input_size[0]}u) continue;"]

    def _weights(self) -> dict[str, object]:
        """Holes for a thread's weights: the place of its first one, the steps between input and output channels, and
        the reads."""
        kernel, found, taps = self.kernel, self.space.found, self.space.taps
        inner, outer = found.in_per_group, found.out_per_group
        channel = f"first_channel % {outer}" if kernel.transposed else "first_channel"
        first = f"(long long){channel} * {taps if kernel.transposed else inner * taps}"
        if kernel.transposed:
            first = f"((long long)group * {inner * outer} + {channel}) * {taps}"
        across = taps if kernel.transposed else inner * taps
        value = self.space.weight_value(f"kernel[i * {across} + tap]")
        inside = outer * taps if kernel.transposed else taps
        return {
            "FIRST_WEIGHT": first,
            "WEIGHT_IN": inside,
            "W_SOURCE": self.space.weight_value(f"weights[i * {across} + c * {inside} + tap]"),
            "W_VALUE": value,
            "WEIGHT": kernel.weight,
            "W_TYPE": element_type(self.space.plan.buffers[kernel.weight].dtype),
        }

    def _tables(self) -> dict[str, object]:
        """Holes for the tables of lines and loads, and for how far loops are unrolled."""
        shape, axes = self.shape, self.space.found.axes
        _, high, wide = self.kernel.kernel
        starts, elements = _place_loads(self.space, shape.outputs)
        lines = find_reach(axes[1], high, shape.rows)
        tap = [[-1] * shape.rows for _ in lines.positions]
        for th, row in enumerate(lines.under):
            for r, line in enumerate(row):
                if line >= 0:
                    tap[line][r] = th
        products = sum(at >= 0 for row in elements for at in row) * sum(th >= 0 for row in tap for th in row)
        unrolled = products * shape.channels <= _MOST_PRODUCTS
        kept = high * wide * shape.channels
        keep = not shape.staged and unrolled and kept * self.space.item_bytes // 4 <= _MOST_KEPT
        window = len(starts) * _load_vector(self.space, shape.outputs)
        held = len(lines.positions) * window
        several = shape.staged and shape.rows > _phase_steps(self.space)[0]
        together = several and unrolled and held * self.space.item_bytes // 4 <= _MOST_TOGETHER
        return {
            "PIECES": len(starts),
            "PIECE": _print_table(starts),
            "LINES": len(lines.positions),
            "LINE": _print_table(lines.positions),
            "ELEMENT": _print_table(elements),
            "TAP": _print_table([tuple(row) for row in tap]),
            "UNDER": _print_table(lines.under),
            "TOGETHER": "true" if together else "false",
            "KEEP": "true" if keep else "false",
            "MIN_BLOCKS": self._min_blocks(held // 2 if together else window, kept if keep else 0),
            "UNROLL": len(lines.positions) if unrolled else 1,
            "ADVANCE_H": lines.advance,
            "ADVANCE_W": find_reach(axes[2], wide, shape.outputs).advance,
            "WIDE": _load_vector(self.space, shape.outputs),
        }

    def _exists(self) -> str:
        """C test that an output exists."""
        _, high, wide = self.kernel.output_size
        tests = [f"p1 < {high}"] if high % self.shape.rows else []
        tests += [f"p2 < {wide}"] if wide % self.shape.outputs else []
        return " && ".join(tests) or "true"

    def _min_blocks(self, window: int, kept: int) -> int:
        """Blocks of a multiprocessor to leave registers for: sums, `kept` weights, two lines of `window` inputs,
        addresses."""
        words = self.space.item_bytes // 4
        registers = min(255, (_count_sums(self.shape) + kept + 2 * window) * words + 40)
        return max(1, 65536 // (math.prod(self.block) * registers))

    def _source(self, signature: str) -> str:
        """CUDA text of the kernel with these parameters."""
        kernel, shape, space = self.kernel, self.shape, self.space
        store = _store_vector(space, shape.outputs)
        acc = "acc[i][r][o + j]" if store > 1 else "acc[i][r][o]"
        epilogue = epilogue_lines(
            space.outputs(), kernel.stores, space.plan, acc=acc, vector=store, guard="", element_guard=""
        )
        tiles = math.ceil(self.columns / self.block[0]), math.ceil(self.row_blocks / self.block[1])
        values: dict[str, object] = {
            **self._tables(),
            **self._weights(),
            "NAME": space.name,
            "PARAMETERS": signature,
            "TYPE": space.type,
            "IMAGE": space.image,
            "INSIDE": space.inside,
            "X_TYPE": space.x_type,
            "X_VALUE": space.x_value("loaded.at[e]"),
            "ORIGIN": space.origin("image", "group"),
            "CHANNELS": shape.channels,
            "ROWS": shape.rows,
            "OUTPUTS": shape.outputs,
            "THREADS": math.prod(self.block),
            **{f"TAPS_{name}": taps for name, taps in zip("DHW", kernel.kernel, strict=True)},
            **{"TILES_W": tiles[0], "TILES_H": tiles[1], "TILES": tiles[0] * tiles[1]},
            **{"BLOCK_W": self.block[0], "BLOCK_H": self.block[1], "BLOCK_PLANES": self.block[2]},
            **{"COLUMNS": self.columns, "ROW_BLOCKS": self.row_blocks, "PLANES": self.planes, "SETS": self.sets},
            **{
                "OUT_D": kernel.output_size[0],
                "PLANES_IMAGE": kernel.output_size[0] * (1 if shape.staged else self.sets),
            },
            "STAGED": "true" if shape.staged else "false",
            "BLOCK": f"(blockIdx.x / {self.sets})" if shape.staged else "blockIdx.x",
            "SET": f"(int)(blockIdx.x % {self.sets})"
            if shape.staged
            else f"plane / {kernel.output_size[0]} % {self.sets}",
            "GROUP_CHANNELS": space.found.out_per_group,
            "IN_CHANNELS": space.found.in_per_group,
            **{"IN_H": kernel.input_size[1], "IN_W": kernel.input_size[2]},
            **dict(zip(("X_CHANNEL", "X_DEPTH", "X_ROW", "X_COLUMN"), kernel.x_strides[1:], strict=True)),
            "DEPTH": indent(self._depth(), 3),
            "STORE": store,
            "EXISTS": self._exists(),
            "EPILOGUE": indent(epilogue, 5),
        }
        return fill(read_library_text("cuda/convolutions/direct.cu"), values)

    def print(self) -> PrintedKernel:
        """The printed kernel, with one launch."""
        signature, arguments = self.space.signature((self.kernel.weight,))
        wide, high, planes = self.block
        blocks = math.ceil(self.columns / wide) * math.ceil(self.row_blocks / high) * math.ceil(self.planes / planes)
        blocks *= self.sets if self.shape.staged else 1
        launch = Launch(self.space.name, (blocks, 1, 1), self.block, tuple(arguments))
        return PrintedKernel(
            functions=self._source(signature),
            call=launches.encode([launch]),
            template="conv",
            choices={item.name: getattr(self.shape, item.name) for item in self.tunables if item.name != "weights"}
            | {"weights": WEIGHTS[self.shape.staged]},
            tunables=self.tunables,
        )


def print_algorithm(space: ConvSpace, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """The printed kernel, by `choices` or defaults."""
    return _Direct(space, device, choices).print()
