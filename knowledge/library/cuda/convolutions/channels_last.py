"""Convolutions in CUDA through a channels-last copy of the input, padding included, as products of warpgroups.

One launch brings the input into the order (image, position, channel), in 16 bits times a power of two an image (`half`,
`half3`) or rounded to TF32; weights that are parameters are packed once. The main loop then reads 16 bytes of channels
of a tap at a time and never asks where an image ends. Phases of a transposed convolution are products of their own.
"""

from __future__ import annotations

import math
from dataclasses import asdict

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda import launches as cuda_launch
from foundry.knowledge.library.cuda.contractions.tensor_tiles import (
    DRAINED,
    GUESS,
    HALF,
    HALF3,
    LABELS,
    PRECISION,
    TYPES,
    has_wgmma,
)
from foundry.knowledge.library.cuda.contractions.tiled import epilogue_lines
from foundry.knowledge.library.cuda.convolutions.packed_input import PackedInput, packed_input
from foundry.knowledge.library.cuda.convolutions.pixel_tiles import (
    KEPT,
    REGISTERS,
    choose_pixels,
    find_needs,
    gathers_phases,
    together,
)
from foundry.knowledge.library.cuda.convolutions.space import POSITION, ConvSpace
from foundry.knowledge.library.cuda.convolutions.tails import (
    ConvTail,
    OverChannels,
    OverPixels,
    OverWindows,
    order_pixels,
)
from foundry.knowledge.library.cuda.dialect import element
from foundry.knowledge.library.cuda.launches import Argument, Launch, max_shared_bytes
from foundry.knowledge.library.cuda.space import (
    indent,
    parameters,
    pick,
    tunable,
)
from foundry.knowledge.library.file.assemble import fill
from foundry.knowledge.library.file.texts import read_library_text
from foundry.knowledge.library.ir.access import tail_outer
from foundry.knowledge.library.ir.cost import flops
from foundry.knowledge.library.ir.kernels import PrintedKernel

_THREADS = 256  # of a packing launch
_AXES = range(3)
_LEAST_FLOPS = 1e9
_MOST_PIECES = 8192  # of the tables
_ALIGN = 1024
_NEAR = ("no", "yes")
_PRECISION_MEANING = (
    "half: operands scaled to 16 bits, 11 significant ones as TF32 has; half3: three products of such halves, as "
    "accurate as float32; tf32: as PyTorch with TF32 allowed, at half the rate"
)


def fits(space: ConvSpace) -> bool:
    """Wide integers and doubles are for others, and so is an input whose packed form has too many pieces to count."""
    if space.plan.buffers[space.kernel.x].dtype == "float64" or space.kernel.dtype != "float32":
        return False
    dtype = _dtype(space)
    if dtype == "float32" and space.plan.ieee_only:
        return False
    for precision in _precisions(space):
        found = packed_input(space, precision)
        if found.pieces >= 2**31 - 2**16 or len(found.reads) > _MOST_PIECES:
            return False
    return True


def runs_on(arch: str) -> bool:
    return has_wgmma(arch)


def pays(space: ConvSpace) -> bool:
    """Whether the input is read often enough to win its copy back, and the launches that make it. Images of fewer than
    eight channels fill half of each piece; of those only phases, which read little, are faster."""
    channels, out = space.found.in_per_group, space.found.out_per_group
    fills = channels >= 8 or space.kernel.transposed
    is_read_often = fills and out >= 16 and channels * space.taps >= 64 and (space.taps > 1 or channels >= 256)
    return is_read_often and flops(space.kernel) >= _LEAST_FLOPS


def _dtype(space: ConvSpace) -> str:
    stored = {space.plan.buffers[name].dtype for name in (space.kernel.x, space.kernel.weight)}
    found = stored.pop() if len(stored) == 1 else "float32"
    return found if found in ("float16", "bfloat16") else "float32"


def _precisions(space: ConvSpace) -> tuple[str, ...]:
    dtype = _dtype(space)
    return (HALF, HALF3, "tf32") if dtype == "float32" else (dtype,)


def takes(space: ConvSpace, choices: dict[str, Choice]) -> bool:
    """Whether a precision that was asked for is one of these."""
    return choices.get(PRECISION, _precisions(space)[0]) in _precisions(space)


class _ChannelsLast:
    def __init__(self, space: ConvSpace, device: Device, choices: dict[str, Choice]) -> None:
        self.space, self.found, self.kernel = space, space.found, space.kernel
        self.arch, self.cores = device.arch, device.cores
        precisions = _precisions(space)
        self.precision = str(pick(choices, PRECISION, precisions, precisions[0]))
        # Neighbouring taps of few channels lie in one line, which the first cache then serves.
        self.near_default = _NEAR[packed_input(space, self.precision).point == 1]
        self.near = str(pick(choices, "near", _NEAR, self.near_default))
        tail = self.kernel.tail
        whole = tail is not None and math.prod(tail.extent[2:]) == 1  # tiles of all channels
        if whole:
            choices = {name: value for name, value in choices.items() if name != "tile_channels"}
        self.shape, tunables = choose_pixels(space, self.precision, device, choices)
        self.tunables = tuple(item for item in tunables if not (whole and item.name == "tile_channels"))
        self.packed: PackedInput = packed_input(space, self.precision)
        self.n = self.found.out_per_group
        self.gathers = gathers_phases(space)
        counts = tail_outer(self.kernel)[2:] if self.gathers else tuple(axis.count for axis in self.found.axes)
        self.pixels = order_pixels(self.kernel, counts, self.shape.tile_pixels, gathers=self.gathers)
        self.m = self.kernel.batch * self.pixels.padded
        self.tiles = math.ceil(self.m / self.shape.tile_pixels), math.ceil(self.n / self.shape.tile_channels)
        self.phases = self.found.parts
        self.padded_n = self.tiles[1] * self.shape.tile_channels
        self.weight_rows = self.kernel.groups * self.padded_n
        self.is_prepared = space.plan.buffers[self.kernel.weight].role in ("parameter", "prepared")
        self._place()
        self.tail = self._tail(self.workspace_bytes)

    def _tail(self, memory: int) -> ConvTail | None:
        """The text of the tail, with its states from `memory` bytes into the workspace."""
        tail, together = self.kernel.tail, self.together
        if tail is None:
            return None
        if math.prod(self.pixels.window) > 1 or self.gathers:
            return OverWindows(self.space, tail, memory, gathers=self.gathers)
        if math.prod(tail.extent[2:]) > 1:
            every = self._output()[1] == "true" and not self._edge
            room = max_shared_bytes(self.arch) - self.shape.shared_bytes(self.packed.all_steps)
            found = (self.space, tail, self.pixels, self.shape, together, memory)
            return OverPixels(*found, every=every, room=room)
        columns = self.shape.tile_channels if self.tiles[1] == 1 else 0
        return OverChannels(self.space, tail, columns, self._acc, together, self._edge, memory)

    @property
    def _acc(self) -> str:
        """Text of a sum."""
        phase = "w" if self.gathers else "j" if self.together == 2 else "0"
        return f"acc[{phase}][i][h * 4 + r * 2 + side]"

    @property
    def _edge(self) -> str:
        """Whether the second of two outputs side by side exists, where it may not."""
        wide = self.kernel.output_size[2]
        return f"p2 + j < {wide}" if self.together == 2 and wide % 2 and not self.gathers else ""

    @property
    def together(self) -> int:
        """Phases that a tile computes together: two of the last axis, whose outputs lie side by side, or all."""
        return together(self.space)

    @property
    def all_tiles(self) -> int:
        """Of all phases and groups."""
        return self.tiles[0] * self.tiles[1] * len(self.phases) // self.together * self.kernel.groups

    @property
    def is_scaled(self) -> bool:
        return self.precision in (HALF, HALF3)

    def _place(self) -> None:
        """Where things lie in the workspace and in prepared memory."""
        weights = self.weight_rows * len(self.packed.reads) * 16
        self.prepared_bytes = weights + (_aligned(4 * self.weight_rows) if self.is_scaled else 0)
        self.workspace_bytes = 0 if self.is_prepared else _aligned(self.prepared_bytes)
        memory = cuda_launch.prepared if self.is_prepared else cuda_launch.workspace
        self.weights, self.exponents_w = memory(0), memory(weights)
        image = self.workspace_bytes
        self.image = cuda_launch.workspace(image)
        self.exponents_x = cuda_launch.workspace(image + _aligned(self.packed.pieces * 16))
        peaks = image + _aligned(self.packed.pieces * 16) + _aligned(4 * self.kernel.batch)
        self.peaks = cuda_launch.workspace(peaks)
        self.workspace_bytes = peaks + (_aligned(4 * self.kernel.batch * self.pack_blocks) if self.is_scaled else 0)

    # ------------------------------------------------------------ packing

    @property
    def part(self) -> int:
        """Pieces of a place that a block packs, a thread each."""
        return next(part for part in (8, 4, 2, 1) if self.packed.point % part == 0)

    @property
    def chunks(self) -> int:
        return self.packed.point // self.part

    @property
    def spot_blocks(self) -> int:
        return math.ceil(self.packed.spots * self.part / _THREADS)

    @property
    def pack_blocks(self) -> int:
        """Blocks that pack an image."""
        return self.spot_blocks * self.chunks

    @property
    def repairers(self) -> int:
        """Blocks that look whether an image must be packed again."""
        return max(1, min(8, self.pack_blocks))

    def _x(self) -> str:
        return f"const {self.space.x_type}* __restrict__ b_{self.kernel.x}"

    def _packing(self) -> list[tuple[str, Launch]]:
        space, packed, kernel = self.space, self.packed, self.kernel
        name = space.name
        weight_at = f"((group * {self.n} + n) * {self.found.in_per_group} + c) * {space.taps} + {name}_taps[at]"
        if kernel.transposed:
            weight_at = f"((group * {self.found.in_per_group} + c) * {self.n} + n) * {space.taps} + {name}_taps[at]"
        if kernel.in_channels * self.n * space.taps >= 2**31:
            weight_at = f"(long long){weight_at}"
        values: dict[str, object] = {
            "NAME": name,
            "X": kernel.x,
            "X_TYPE": space.x_type,
            "INSIDE": space.inside,
            "PRECISION": TYPES[self.precision],
            "PIECES": len(packed.reads),
            "READS": ", ".join(map(str, packed.reads)),
            "TAPS": ", ".join(map(str, packed.taps)),
            "CHANNELS": ", ".join(map(str, packed.channels)),
            **{"PART": self.part, "SPOTS": packed.spots, "POINT": packed.point, "PIECES_GROUP": packed.pieces_group},
            **{f"P{d}": packed.size[d] for d in _AXES},
            **{f"LEAD{d}": self.found.axes[d].lead for d in _AXES},
            **{f"IN{d}": kernel.input_size[d] for d in _AXES},
            **{f"STRIDE{d}": kernel.x_strides[2 + d] for d in _AXES},
            "STRIDE_C": kernel.x_strides[1],
            "ORIGIN": space.origin("photo", "0"),
            "C": self.found.in_per_group,
            "FOUND": space.x_value("found"),
            "PACK": "pack::cut<Precision>" if packed.low else "Precision::pack",
            "PARTS": 2 if packed.low else 1,
            "HAS_LOW": str(packed.low > 0).lower(),
            "LOW_BYTES": packed.low * 16,
            "GUESS": GUESS if self.is_scaled else 0,
            **{"SPOT_BLOCKS": self.spot_blocks, "CHUNKS": self.chunks},
            "REPAIRERS": self.repairers,
            "W_TYPE": element(space.plan.buffers[kernel.weight].dtype),
            "FOUND_WEIGHT": space.weight_value("found"),
            "WEIGHT_AT": weight_at,
            **{"WEIGHT_ROWS": self.weight_rows, "PADDED_N": self.padded_n, "N": self.n},
            **{"BN": self.shape.tile_channels, "TILES_N": self.tiles[1], "ALL_STEPS": packed.all_steps},
            **self._scaling(),
        }
        if packed.low:
            table = ", ".join(str(int(low)) for low in packed.low_weights)
            values["LOW_TABLE"] = f"__device__ const bool {name}_low[{len(packed.reads)}] = {{{table}}};"
            values["IS_LOW"] = f"{name}_low[at]"
        names = ["pack", *(["repair"] if self.is_scaled else [])]
        texts = {key: _text(f"channels_last_{key}.cu", values) for key in names}
        images = kernel.batch
        arguments = [kernel.x, self.image, *([self.peaks] if self.is_scaled else [])]
        block = (_THREADS, 1, 1)
        found = [(texts["pack"], Launch(f"{name}_pack", (self.pack_blocks * images, 1, 1), block, tuple(arguments)))]
        if self.is_scaled:
            arguments = [kernel.x, self.image, self.peaks, self.exponents_x]
            found.append(
                (texts["repair"], Launch(f"{name}_repair", (self.repairers * images, 1, 1), block, tuple(arguments)))
            )
        return [*found, ("", self._weights_launch())]

    def _weights_launch(self) -> Launch:
        arguments = (self.kernel.weight, self.weights, *([self.exponents_w] if self.is_scaled else []))
        blocks = math.ceil(self.weight_rows / 8)
        name = f"{self.space.name}_weights"
        return Launch(name, (blocks, 1, 1), (_THREADS, 1, 1), arguments, prepares=self.is_prepared)

    def _scaling(self) -> dict[str, object]:
        """What differs where operands are scaled to 16 bits."""
        weight = f"const {element(self.space.plan.buffers[self.kernel.weight].dtype)}* __restrict__ weight"
        packs = f"{self._x()}, unsigned char* __restrict__ packed"
        fills = f"{weight}, unsigned char* __restrict__ weights"
        plain: dict[str, object] = {
            "LOW_TABLE": "",
            "IS_LOW": "false",
            "KEEP_PEAK": "",
            "TIMES": "",
            "WEIGHT_SCALE": "",
        }
        if not self.is_scaled:
            return {**plain, "PACK_PARAMETERS": packs, "WEIGHT_PARAMETERS": fills}
        keep = [
            "using Largest = Extreme<float, true>;",
            "SHARED_STATES(Largest, partials, 8);",
            "largest = reduce_block<8>(largest, partials);",
            "if (threadIdx.x == 0) peaks[blockIdx.x] = largest.value;",
        ]
        scale = [
            "float largest = 0.0f;",
            f"for (int at = lane; at < {len(self.packed.reads)}; at += 32)",
            "    for (int e = 0; e < PIECE; ++e) largest = math::maximum(largest, pack::finite(read(at, e)));",
            "#pragma unroll",
            "for (int mask = 16; mask; mask /= 2)",
            "    largest = math::maximum(largest, __shfl_xor_sync(0xffffffffu, largest, mask));",
            "const int exponent = pack::exponent_for(largest);",
            "const float scale = pack::power(exponent);",
            "if (lane == 0) exponents_w[row] = -exponent;",
        ]
        return plain | {
            "PACK_PARAMETERS": f"{packs}, float* __restrict__ peaks",
            "WEIGHT_PARAMETERS": f"{fills}, int* __restrict__ exponents_w",
            "KEEP_PEAK": indent(keep),
            "WEIGHT_SCALE": indent(scale),
            "TIMES": " * scale",
        }

    # ------------------------------------------------------------ main loop

    def _block(self) -> list[str]:
        """Which phase, group and place of the result a tile is: phases vary fastest, then tiles of channels."""
        shape, phases = self.shape, len(self.phases) // self.together
        lines = []
        if len(self.phases) > 1 and not self.gathers:
            table = f"{self.space.name}_phases[phase"
            lines += [f"const int phase = tile % {phases} * {self.together};"]
            lines += [f"const int first_steps = {table}][3], first_step = {table}][4];"]
            more = f" + {table} + 1][3]" if self.together == 2 else ""
            lines += [f"const int steps = first_steps{more};"]
        else:
            lines += [f"const int steps = {self.packed.all_steps}, first_steps = steps, first_step = 0;"]
        of_group = self.tiles[0] * self.tiles[1]
        if self.kernel.groups > 1:
            lines += [f"const int group_index = tile / {phases * of_group};"]
        place = f"tile / {phases} % {of_group}" if self.kernel.groups > 1 else f"tile / {phases}"
        lines += [f"const int tile_m = ({place}) / {self.tiles[1]}, tile_n = ({place}) % {self.tiles[1]};"]
        return [*lines, f"const int first_m = tile_m * {shape.tile_pixels}, first_n = tile_n * {shape.tile_channels};"]

    def _output(self) -> tuple[list[str], str]:
        """Statements that define an output's place from `m`, and when it exists."""
        lines = self.pixels.find()
        tests = [f"m < {self.m}"] if self.m % self.shape.tile_pixels else []
        tests += self.pixels.exist()
        for d in _AXES if not self.gathers else ():
            axis = self.found.axes[d]
            start = f" + {self.space.name}_phases[phase][{d}]" if len(axis.parts) > 1 else ""
            lines.append(f"const int {POSITION[d]} = j{d} * {axis.parts[0].step}{start};")
            if any(part.count < axis.count for part in axis.parts) and (d < 2 or self.together == 1):
                tests.append(f"{POSITION[d]} < {self.kernel.output_size[d]}")
        if self.gathers:
            lines += [f"const int {POSITION[d]} = j{d} * {len(self.found.axes[d].parts)};" for d in _AXES]
        return lines, " && ".join(tests) or "true"

    def _main(self) -> tuple[str, Launch]:
        kernel, shape, packed, space = self.kernel, self.shape, self.packed, self.space
        reads, writes = space.epilogue_buffers()
        if self.tail:
            rows, row_writes = self.tail.row_buffers()
            writes = list(dict.fromkeys([*writes, *row_writes]))
            reads = [name for name in dict.fromkeys([*reads, *rows]) if name not in writes]
        signature, arguments = parameters(space.plan, reads, writes)
        more = ["const unsigned char* __restrict__ packed", "const unsigned char* __restrict__ weights"]
        slots = [self.image, self.weights]
        more_slots: list[Argument] = []
        acc, exponent, channel_scale = self._acc, "0", []
        if self.is_scaled:
            more += ["const int* __restrict__ exponents_x", "const int* __restrict__ exponents_w"]
            slots += [self.exponents_x, self.exponents_w]
            exponent = f"m < {self.m} ? exponents_x[photo] : 0"
            channel_scale = [f"const int channel_exponent = exponents_w[{self._group} * {self.padded_n} + n];"]
            acc = f"pack::scaled({acc}, place[i][r].exponent + channel_exponent)"
        output, exists = self._output()
        own, most = REGISTERS[shape.turns]
        size, step = packed.size, [axis.in_step for axis in self.found.axes]
        begin = f"((photo * {size[0]} + j0 * {step[0]}) * {size[1]} + j1 * {step[1]}) * {size[2]} + j2 * {step[2]}"
        own_group = f" + {self._group} * {packed.pieces_group}" if kernel.groups > 1 else ""
        tail = self.tail
        # What no pixel has a value of its own for is computed for every pixel, and stored where there is one.
        is_free = tail is not None and space.ignores_pixels()
        found = [*(["place[i][r].exists"] if exists != "true" else []), *([self._edge] if self._edge else [])]
        guard = " && ".join(found) if is_free else ""
        kept = (tail.values(), tail.note(guard or "true")) if tail else ({}, [])
        vector, edge = 1 if self.gathers else self.together, "" if is_free else self._edge
        body = epilogue_lines(space.outputs(), kernel.stores, space.plan, acc, vector, "", edge, *kept, guard)
        count = "w == 0 ? first_steps : steps - first_steps"
        if isinstance(tail, OverWindows) and self.gathers:
            body, count = tail.each_phase(body), f"{space.name}_phases[w][3]"
        for text, slot in tail.slots() if tail else []:
            signature = ", ".join([*([signature] if signature else []), text])
            more_slots.append(slot)
        values: dict[str, object] = {
            "NAME": space.name,
            "PARAMETERS": ", ".join([*more, *([signature] if signature else [])]),
            "PRECISION": TYPES[self.precision],
            "THREADS": shape.threads,
            "MIN_BLOCKS": shape.resident_blocks(find_needs(space, self.precision), self.arch),
            **{"BM": shape.tile_pixels, "BN": shape.tile_channels, "TURNS": shape.turns},
            "COUNT": count,
            "KEPT": packed.all_steps if shape.weights == KEPT else 0,
            **{"STAGES": shape.stages, "TILES": self.all_tiles, "PHASES": self.together},
            "GIVE_UP": f"        wgmma::give_up<{own}>();" if own else "",
            "CLAIM": f"    wgmma::claim<{most}>();" if own else "",
            "DRAINED": DRAINED if self.precision == HALF3 else 0,
            "NEAR": str(self.near == "yes").lower(),
            "BLOCK": indent(self._block(), 2),
            "M": self.m,
            "N": self.n,
            "GROUP": self._group,
            "IS_PIXEL": self.pixels.is_pixel("pixel"),
            "PIXEL": indent(self.pixels.find(), 4),
            "BEGIN": f"({begin}) * {packed.point}{own_group}",
            **{"ALL_STEPS": packed.all_steps, "TILES_N": self.tiles[1]},
            "IMAGE": space.image,
            "OUTPUT": indent(output, 4),
            "EXPONENT": exponent,
            "EXISTS": exists,
            "PIXEL_EXISTS": "true" if is_free else "place[i][r].exists",
            "CHANNEL_SCALE": indent(channel_scale, 4),
            "CHANNEL_EXISTS": f"n < {self.n}" if self.n % shape.tile_channels else "true",
            "EPILOGUE": indent(body, 8),
            "TAIL_BEGIN": indent(tail.begin() if tail else (), 2),
            "TAIL_CHANNEL": indent(tail.of_channel() if tail else (), 4),
            "TAIL_KEEP": indent(tail.keep() if tail else (), 4),
            "TAIL_END": indent(tail.finish() if tail else (), 2),
        }
        blocks = min(self.all_tiles, self.cores * shape.resident_blocks(find_needs(space, self.precision), self.arch))
        launch = Launch(
            space.name,
            (blocks, 1, 1),
            (shape.threads, 1, 1),
            (*slots, *arguments, *more_slots),
            shared_bytes=shape.shared_bytes(packed.all_steps),
        )
        return self._phases() + _text("channels_last.cu", values), launch

    def _phases(self) -> str:
        if len(self.phases) == 1:
            return ""
        rows = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in self.packed.phases)
        about = "// Phases of the stride: first output along each axis, number of steps, first of them.\n"
        return f"{about}__device__ const int {self.space.name}_phases[{len(self.phases)}][5] = {{{rows}}};\n\n"

    @property
    def _group(self) -> str:
        return "group_index" if self.kernel.groups > 1 else "0"

    def print(self) -> PrintedKernel:
        parts = [*self._packing(), self._main(), *(self.tail.launches() if self.tail else [])]
        kind = "tf32" if self.precision == "tf32" else "sixteen"
        shared = ["mma", f"mma_{kind}", "wgmma", f"wgmma_{kind}", "bulk", "async", "pack"]
        shared += ["tails"] if self.tail else []
        precisions = _precisions(self.space)
        tunables = [
            tunable("near", _NEAR, self.near_default, "memory", "whether the first cache keeps lines for the next tap")
        ]
        if len(precisions) > 1:
            tunables.insert(0, tunable(PRECISION, precisions, precisions[0], PRECISION, _PRECISION_MEANING))
        values: dict[str, Choice] = {PRECISION: self.precision, "near": self.near, **asdict(self.shape)}
        every = (*tunables, *self.tunables)
        return PrintedKernel(
            functions="\n".join(text for text, _ in parts),
            call=cuda_launch.encode([launch for _, launch in parts]),
            template="conv",
            choices={item.name: values[item.name] for item in every},
            tunables=every,
            d_mem=3,
            d_algo=1 if len(self.kernel.ops) > 1 else 0,
            d_sync=2,
            workspace_bytes=self.tail.end if self.tail else self.workspace_bytes,
            prepared_bytes=self.prepared_bytes if self.is_prepared else 0,
            launches=len(parts) - self.is_prepared,
            labels=LABELS.get(self.precision, ()),
            arch_feature="a",
            shared=tuple(read_library_text(f"cuda/contractions/{name}.cuh") for name in shared),
        )


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGN) * _ALIGN


def _text(name: str, holes: dict[str, object]) -> str:
    text = read_library_text(f"cuda/convolutions/{name}")
    return fill(text, {key: str(value) for key, value in holes.items() if f"@{key}@" in text})


def print_algorithm(space: ConvSpace, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    return _ChannelsLast(space, device, choices).print()
