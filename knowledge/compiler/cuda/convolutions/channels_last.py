"""Convolutions in CUDA through a channels-last copy of the input, padding included, as products of warpgroups.

One launch brings the input into the order (image, position, channel): in 16 bits times a power of two an image (`half`,
`half3`), or rounded to TF32. Weights that are parameters are packed once. The main loop then reads 16 bytes of a tap's
channels at a time and never tests where an image ends. Phases of a transposed convolution are products of their own."""

from __future__ import annotations

import math
from dataclasses import asdict

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import (
    DRAINED,
    HALF3,
    LABELS,
    PRECISION,
    TYPES,
    has_wgmma,
)
from foundry.knowledge.compiler.cuda.contractions.tiled import epilogue_lines
from foundry.knowledge.compiler.cuda.convolutions.channels_last_layout import (
    NEAR,
    ChannelsLastLayout,
    precisions_of,
    stored_type,
)
from foundry.knowledge.compiler.cuda.convolutions.channels_last_packing import fill_text, print_packing
from foundry.knowledge.compiler.cuda.convolutions.packed_input import plan_packed_input
from foundry.knowledge.compiler.cuda.convolutions.pixel_tiles import KEPT, REGISTERS, find_needs
from foundry.knowledge.compiler.cuda.convolutions.space import POSITION, ConvSpace
from foundry.knowledge.compiler.cuda.convolutions.tails import ConvTail, OverChannels, OverPixels, OverWindows
from foundry.knowledge.compiler.cuda.launches import Argument, Launch, max_shared_bytes
from foundry.knowledge.compiler.cuda.space import indent, list_parameters, make_tunable
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.cost import flops
from foundry.knowledge.compiler.ir.kernels import PrintedKernel, Tunable
from foundry.knowledge.device import Device

_AXES = range(3)
_LEAST_FLOPS = 1e9  # operations of a convolution; for fewer the packing launches never pay
_LARGE_WINDOW = 256  # elements of a window of few channels
_LEAST_OVERLAP = 4  # fewest times that such windows read each pixel
_MOST_PIECES = 8192  # most pieces in the tables
_PRECISION_MEANING = (
    "half: operands scaled to 16 bits, 11 significant ones as TF32 has; half3: three products of such halves, as "
    "accurate as float32; tf32: as PyTorch with TF32 allowed, at half the rate"
)


def fits(space: ConvSpace) -> bool:
    """True if this algorithm can compute the convolution: float32 arithmetic, TF32 allowed unless inputs have 16 bits,
    and few enough pieces."""
    if space.plan.buffers[space.kernel.x].dtype == "float64" or space.kernel.dtype != "float32":
        return False
    dtype = stored_type(space)
    if dtype == "float32" and space.plan.ieee_only:
        return False
    for precision in precisions_of(space):
        found = plan_packed_input(space, precision)
        if found.pieces >= 2**31 - 2**16 or len(found.reads) > _MOST_PIECES:
            return False
    return True


def runs_on(arch: str) -> bool:
    """True if the device has wgmma instructions."""
    return has_wgmma(arch)


def pays(space: ConvSpace) -> bool:
    """True if the input is read often enough to win back its copy and the packing launches.

    Images of fewer than eight channels fill half of each piece: this pays only if transposed, or for large windows that
    overlap."""
    channels, out = space.found.in_per_group, space.found.out_per_group
    overlaps = space.taps >= _LEAST_OVERLAP * math.prod(space.kernel.stride)
    fills = channels >= 8 or space.kernel.transposed or (channels * space.taps >= _LARGE_WINDOW and overlaps)
    is_read_often = fills and out >= 16 and channels * space.taps >= 64 and (space.taps > 1 or channels >= 256)
    return is_read_often and flops(space.kernel) >= _LEAST_FLOPS


def takes(space: ConvSpace, choices: dict[str, Choice]) -> bool:
    """True if this algorithm has the chosen precision, or none was chosen."""
    return choices.get(PRECISION, precisions_of(space)[0]) in precisions_of(space)


class _Product:
    """Prints the main loop: tiles of the product, and what is stored or reduced of their sums."""

    def __init__(self, layout: ChannelsLastLayout) -> None:
        self.layout, self.space = layout, layout.space
        self.tail = self._tail(layout.workspace_bytes)

    def _tail(self, memory: int) -> ConvTail | None:
        """The tail's printer, with its states from byte `memory` of the workspace; None without a tail."""
        layout, tail = self.layout, self.space.kernel.tail
        if tail is None:
            return None
        if math.prod(layout.pixels.window) > 1 or layout.gathers:
            return OverWindows(self.space, tail, memory, gathers=layout.gathers)
        if math.prod(tail.extent[2:]) > 1:
            every = self._output()[1] == "true" and not self._edge
            room = max_shared_bytes(layout.arch) - layout.shape.shared_bytes(layout.packed.all_steps)
            found = (self.space, tail, layout.pixels, layout.shape, layout.together, memory)
            return OverPixels(*found, every=every, room=room)
        columns = layout.shape.tile_channels if layout.tiles[1] == 1 else 0
        return OverChannels(
            self.space, tail, columns, acc=self._acc, together=layout.together, edge=self._edge, memory=memory
        )

    @property
    def _acc(self) -> str:
        """C text of a sum."""
        if self.layout.near_by:
            return self.layout.near_by.acc
        phase = "w" if self.layout.gathers else "j" if self.layout.together == 2 else "0"
        return f"acc[{phase}][i][h * 4 + r * 2 + side]"

    @property
    def _edge(self) -> str:
        """C test that the second of two outputs side by side exists; "" if it always does."""
        wide = self.space.kernel.output_size[2]
        return f"p2 + j < {wide}" if self.layout.together == 2 and wide % 2 and not self.layout.gathers else ""

    @property
    def _group(self) -> str:
        """C text of the number of the tile's group."""
        return "group_index" if self.space.kernel.groups > 1 else "0"

    @property
    def _ignores_pixels(self) -> bool:
        """True if a tail's epilogue reads no values of single pixels, so that it needs no bounds tests."""
        return self.tail is not None and self.space.ignores_pixels()

    def print(self) -> tuple[str, Launch]:
        """(CUDA text, launch) of the main loop, with the table of phases before it."""
        layout, shape = self.layout, self.layout.shape
        values = self._loop_values() | self._pixel_values() | self._channel_values() | self._tail_values()
        signature, arguments = self._signature()
        values["PARAMETERS"] = ", ".join(signature)
        blocks = min(layout.all_tiles, layout.cores * self._resident_blocks)
        launch = Launch(
            self.space.name,
            (blocks, 1, 1),
            (shape.threads, 1, 1),
            arguments,
            shared_bytes=shape.shared_bytes(layout.packed.all_steps),
        )
        return self._phases() + fill_text("channels_last.cu", values), launch

    @property
    def _resident_blocks(self) -> int:
        """Blocks that a multiprocessor runs at a time."""
        return self.layout.shape.resident_blocks(find_needs(self.space, self.layout.precision), self.layout.arch)

    def _signature(self) -> tuple[list[str], tuple[Argument, ...]]:
        """(C parameters, arguments) of the main loop."""
        layout = self.layout
        reads, writes = self.space.epilogue_buffers()
        if self.tail:
            rows, row_writes = self.tail.row_buffers()
            writes = list(dict.fromkeys([*writes, *row_writes]))
            reads = [name for name in dict.fromkeys([*reads, *rows]) if name not in writes]
        of_buffers, buffers = list_parameters(self.space.plan, reads, writes)
        texts = ["const unsigned char* __restrict__ packed", "const unsigned char* __restrict__ weights"]
        slots: list[Argument] = [layout.image, layout.weights]
        if layout.is_scaled:
            texts += ["const int* __restrict__ exponents_x", "const int* __restrict__ exponents_w"]
            slots += [layout.exponents_x, layout.exponents_w]
        states = self.tail.slots() if self.tail else []
        texts += [*([of_buffers] if of_buffers else []), *(text for text, _ in states)]
        return texts, (*slots, *buffers, *(slot for _, slot in states))

    def _loop_values(self) -> dict[str, object]:
        """Holes for sizes of the tile and the main loop."""
        layout, shape, packed = self.layout, self.layout.shape, self.layout.packed
        own, most = REGISTERS[shape.turns]
        return {
            "NAME": self.space.name,
            "PRECISION": TYPES[layout.precision],
            "THREADS": shape.threads,
            "MIN_BLOCKS": self._resident_blocks,
            **{"BM": shape.tile_pixels, "BN": shape.tile_channels, "TURNS": shape.turns},
            "KEEPS": str(shape.weights == KEPT).lower(),
            **{"STAGES": shape.stages, "TILES": layout.all_tiles, "PHASES": layout.together},
            "GIVE_UP": f"        wgmma::give_up<{own}>();" if own else "",
            "CLAIM": f"    wgmma::claim<{most}>();" if own else "",
            "DRAINED": DRAINED if layout.precision == HALF3 else 0,
            "NEAR": str(layout.near == "yes").lower(),
            "BLOCK": indent(self._block(), 2),
            "GROUP": self._group,
            **{"ALL_STEPS": packed.all_steps, "TILES_N": layout.tiles[1]},
        }

    def _block(self) -> list[str]:
        """C statements that find a tile's phase, group and place; phases vary fastest, then tiles of channels."""
        layout, shape = self.layout, self.layout.shape
        phases = len(layout.phases) // layout.together
        lines = []
        if len(layout.phases) > 1 and not layout.gathers:
            table = f"{self.space.name}_phases[phase"
            lines += [f"const int phase = tile % {phases} * {layout.together};"]
            lines += [f"const int first_steps = {table}][3], first_step = {table}][4];"]
            more = f" + {table} + 1][3]" if layout.together == 2 else ""
            lines += [f"const int steps = first_steps{more};"]
        else:
            lines += ["const int steps = all_steps, first_steps = steps, first_step = 0;"]
        of_group = layout.tiles[0] * layout.tiles[1]
        if self.space.kernel.groups > 1:
            lines += [f"const int group_index = tile / {phases * of_group};"]
        place = f"tile / {phases} % {of_group}" if self.space.kernel.groups > 1 else f"tile / {phases}"
        lines += [f"const int tile_m = ({place}) / {layout.tiles[1]}, tile_n = ({place}) % {layout.tiles[1]};"]
        return [*lines, f"const int first_m = tile_m * {shape.tile_pixels}, first_n = tile_n * {shape.tile_channels};"]

    def _output(self) -> tuple[list[str], str]:
        """(C statements that define an output's place from `m`, C test that it exists)."""
        layout = self.layout
        if layout.near_by:
            return layout.near_by.find(), f"m < {layout.m}" if layout.m % layout.shape.tile_pixels else "true"
        lines = layout.pixels.find()
        tests = [f"m < {layout.m}"] if layout.m % layout.shape.tile_pixels else []
        tests += layout.pixels.exist()
        for d in _AXES if not layout.gathers else ():
            axis = layout.found.axes[d]
            start = f" + {self.space.name}_phases[phase][{d}]" if len(axis.parts) > 1 else ""
            lines.append(f"const int {POSITION[d]} = j{d} * {axis.parts[0].step}{start};")
            if any(part.count < axis.count for part in axis.parts) and (d < 2 or layout.together == 1):
                tests.append(f"{POSITION[d]} < {self.space.kernel.output_size[d]}")
        if layout.gathers:
            lines += [f"const int {POSITION[d]} = j{d} * {len(layout.found.axes[d].parts)};" for d in _AXES]
        return lines, " && ".join(tests) or "true"

    def _pixel_values(self) -> dict[str, object]:
        """Holes of the text that finds a row's place in the input, and its output."""
        layout, packed = self.layout, self.layout.packed
        output, exists = self._output()
        size, step = packed.size, [axis.in_step for axis in layout.found.axes]
        begin = f"((photo * {size[0]} + j0 * {step[0]}) * {size[1]} + j1 * {step[1]}) * {size[2]} + j2 * {step[2]}"
        known = f"m < {layout.m} ? exponents_x[photo] : 0"
        near, rows = layout.near_by, layout.shape.tile_pixels
        own_group = f" + {self._group} * {packed.pieces_group}" if self.space.kernel.groups > 1 else ""
        return {
            "M": layout.m,
            "IS_PIXEL": layout.pixels.is_pixel("pixel"),
            "PIXEL": indent(layout.pixels.find(), 4),
            "BEGIN": f"({begin}) * {packed.point}{own_group}",
            "IMAGE": self.space.image,
            **{"PARTS": near.parts(rows) if near else rows // 64, "HALVES": 1 if near else 2},
            "GATHERED": near.gathered if near else "thread / 8 + i * 16",
            "ROW": near.row if near else "warp % 4 * 16 + i * 64 + lane / 4 + r * 8",
            "OUTPUT": indent(output, 4),
            "SCALE": f"pack::scale_of({known})" if layout.is_scaled else "{}",
            "EXISTS": exists,
            "PIXEL_EXISTS": "true" if self._ignores_pixels else "place[i][r].exists",
        }

    def _channel_values(self) -> dict[str, object]:
        """Holes of the text that finishes the sums of a channel for every phase of a tile."""
        layout, n = self.layout, self.layout.n
        scale = [f"const float channel_scale = pack::power(exponents_w[{self._group} * {layout.padded_n} + n]);"]
        body, count = self._epilogue(), "w == 0 ? first_steps : steps - first_steps"
        if isinstance(self.tail, OverWindows) and layout.gathers:
            body, count = self.tail.each_phase(body), f"{self.space.name}_phases[w][3]"
        return {
            "N": n,
            "COUNT": count,
            "CHANNEL_SCALE": indent(scale if layout.is_scaled else [], 4),
            "CHANNEL_EXISTS": f"n < {n}" if n % layout.shape.tile_channels else "true",
            "EPILOGUE": indent(body, 8),
        }

    def _epilogue(self) -> list[str]:
        """C statements that compute and store an output from its sum, and pass values to the tail."""
        layout, kernel, is_free = self.layout, self.space.kernel, self._ignores_pixels
        acc = f"pack::scaled({self._acc}, place[i][r].scale, channel_scale)" if layout.is_scaled else self._acc
        found = [
            *(["place[i][r].exists"] if self._output()[1] != "true" else []),
            *([self._edge] if self._edge else []),
        ]
        guard = " && ".join(found) if is_free else ""
        kept, note = (self.tail.values(), self.tail.note(guard or "true")) if self.tail else ({}, [])
        if near := layout.near_by:
            return epilogue_lines(
                near.space, near.stores, self.space.plan, acc=acc, vector=near.count, guard="", element_guard=""
            )
        vector, edge = 1 if layout.gathers else layout.together, "" if is_free else self._edge
        return epilogue_lines(
            self.space.outputs(),
            kernel.stores,
            self.space.plan,
            acc=acc,
            vector=vector,
            guard="",
            element_guard=edge,
            kept=kept,
            note=note,
            store_guard=guard,
        )

    def _tail_values(self) -> dict[str, object]:
        """Holes of the text for the statements of a tail, empty without one."""
        tail = self.tail
        return {
            "TAIL_BEGIN": indent(tail.begin() if tail else (), 2),
            "TAIL_CHANNEL": indent(tail.begin_channel() if tail else (), 4),
            "TAIL_KEEP": indent(tail.keep() if tail else (), 4),
            "TAIL_END": indent(tail.finish() if tail else (), 2),
        }

    def _phases(self) -> str:
        """CUDA text of the table of phases; "" for a single phase."""
        if len(self.layout.phases) == 1:
            return ""
        rows = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in self.layout.packed.phases)
        about = "// Phases of the stride: first output along each axis, number of steps, first of them.\n"
        return f"{about}__device__ const int {self.space.name}_phases[{len(self.layout.phases)}][5] = {{{rows}}};\n\n"


def _tunables(layout: ChannelsLastLayout) -> tuple[Tunable, ...]:
    """The tunables of the layout: precision (if there are several), "near", and those of its tiles."""
    near = make_tunable(
        "near", NEAR, layout.near_default, "memory", "whether the first cache keeps lines for the next tap"
    )
    every = precisions_of(layout.space)
    precision = make_tunable(PRECISION, every, every[0], PRECISION, _PRECISION_MEANING)
    return (*([precision] if len(every) > 1 else []), near, *layout.tunables)


def print_algorithm(space: ConvSpace, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """The printed kernel: packing launches, the main loop, and the launches of a tail."""
    layout = ChannelsLastLayout(space, device, choices)
    product = _Product(layout)
    tail = product.tail
    parts = [*print_packing(layout), product.print(), *(tail.launches() if tail else [])]
    kind = "tf32" if layout.precision == "tf32" else "sixteen"
    shared = ["mma", f"mma_{kind}", "wgmma", f"wgmma_{kind}", "bulk", "async", "pack", *(["tails"] if tail else [])]
    tunables = _tunables(layout)
    values: dict[str, Choice] = {PRECISION: layout.precision, "near": layout.near, **asdict(layout.shape)}
    values["neighbours"] = layout.neighbours
    return PrintedKernel(
        functions="\n".join(text for text, _ in parts),
        call=cuda_launch.encode([launch for _, launch in parts]),
        template="conv",
        choices={item.name: values[item.name] for item in tunables},
        tunables=tunables,
        workspace_bytes=tail.end if tail else layout.workspace_bytes,
        prepared_bytes=layout.prepared_bytes if layout.is_prepared else 0,
        launches=len(parts) - layout.is_prepared,
        labels=LABELS.get(layout.precision, ()),
        arch_feature="a",
        shared=tuple(read_library_text(f"cuda/contractions/{name}.cuh") for name in shared),
    )
