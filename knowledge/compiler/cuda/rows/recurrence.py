"""Recurrent layers in CUDA: one launch whose blocks run at once, keep their weights, and hand each other states.

The text is `recurrence.cu`. A block knows by a state's bits that it has arrived (`exchange.cuh`), so a step costs one
way through L2 and no barrier. Layers in one launch follow each other a step apart."""

from __future__ import annotations

from collections.abc import Iterator

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches
from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT, element_type
from foundry.knowledge.compiler.cuda.launches import Launch, symbol_of
from foundry.knowledge.compiler.cuda.rows.recurrence_shape import choose_walk
from foundry.knowledge.compiler.cuda.space import (
    Space,
    body_leaves,
    element_load,
    indent,
    index_type,
    list_parameters,
    make_emitter,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.ir.access import cell_loads, last_states, reads
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import DType

_CLEARING_THREADS, _CLEARING_BLOCKS = 256, 1024
_STEP = {
    "lstm": (
        "c[i] = math::sigmoid(own[i][1] + given[i][1]) * c[i] +",
        "       math::sigmoid(own[i][0] + given[i][0]) * math::tanh(own[i][2] + given[i][2]);",
        "h[i] = math::sigmoid(own[i][3] + given[i][3]) * math::tanh(c[i]);",
    ),
    "gru": (
        "const float reset = math::sigmoid(own[i][0] + given[i][0]), update = math::sigmoid(own[i][1] + given[i][1]);",
        "const float next = math::tanh(given[i][2] + reset * own[i][2]);",
        "h[i] = next + update * (h[i] - next);",
    ),
    "rnn_tanh": ("h[i] = math::tanh(own[i][0] + given[i][0]);",),
    "rnn_relu": ("h[i] = math::relu(own[i][0] + given[i][0]);",),
}
_IN_REGISTERS = """\
    float4 @WHOSE@_kept[R][J];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int j = 0; j < J; ++j)
            @WHOSE@_kept[r][j] =
                @CONDITION@in_memory(cell.@FIELD@, cell.@FIELD@_row, first_row + r, column(j))@ELSE@;
    const auto @WHOSE@_weight = [&](int r, int j) { return @WHOSE@_kept[r][j]; };"""
_IN_SHARED = """\
    float* const @WHOSE@_kept = kept + @NUMBER@ * ROWS * PITCH;
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < J; ++j)
            *reinterpret_cast<float4*>(@WHOSE@_kept + (first_row + r) * PITCH + column(j)) =
                @CONDITION@in_memory(cell.@FIELD@, cell.@FIELD@_row, first_row + r, column(j))@ELSE@;
    const auto @WHOSE@_weight = [&](int r, int j) {
        return *reinterpret_cast<const float4*>(@WHOSE@_kept + (first_row + r) * PITCH + column(j));
    };"""
_IN_MEMORY = """\
    const auto @WHOSE@_weight = [&](int r, int j) {
        return in_memory(cell.@FIELD@, cell.@FIELD@_row, first_row + r, column(j));
    };"""
_BELOW = """\
            if (stacked) {
                take(which - DIRECTIONS, step, first, below_h);
                __syncthreads();
                multiply(below_weight, below_h);@APART@
            }"""
_APART = """
                fold(below_sums);
                clear();"""
_HOMES = {"registers": _IN_REGISTERS, "shared": _IN_SHARED, "memory": _IN_MEMORY}


class _Recurrence:
    """Prints one recurrent kernel. Raises CannotLower for types and layouts that it does not take, and for layers that
    do not fit on the device."""

    def __init__(self, kernel: ir.RecurrentKernel, plan: ir.Plan, device: Device, choices: dict[str, Choice]) -> None:
        self.kernel, self.plan = kernel, plan
        self.dtype = self._element()
        self.shape, self.home, self.tunables = choose_walk(kernel, device, choices)
        self.offsets = {"first_layer": kernel.first}  # arguments of the kernel that are numbers
        self.name = symbol_of(kernel)

    def _element(self) -> DType:
        """The dtype of all weights and states in memory. Raises CannotLower if there are several, or an operand is not
        contiguous."""
        found = {load.dtype for load in cell_loads(self.kernel)}
        last = {self.plan.buffers[name].dtype for name in last_states(self.kernel)}
        if len(found | last) != 1 or self.kernel.dtype != "float32":
            raise CannotLower(f"recurrence {self.kernel.name}: types {sorted(found | last)}")
        if any(load.view.strides[-1] != 1 for load in cell_loads(self.kernel)):
            raise CannotLower(f"recurrence {self.kernel.name}: an operand whose neighbours lie apart")
        return found.pop()

    # -- text

    def _cells(self) -> Iterator[str]:
        """Yields C statements that set the pointers and strides of each block's cell; fills `offsets` with the
        arguments that they use."""
        for number, cell in enumerate(cell for layer in self.kernel.layers for cell in layer):
            yield f"if (which == {number}) {{"
            yield from self._fields(cell)
            yield "}"

    def _fields(self, cell: ir.RecurrentCell) -> Iterator[str]:
        """Yields C statements that set the pointers and strides of one cell. Offsets of first states become arguments,
        so that alike layers have one text."""
        strides = {
            "weight": ("weight_row",),
            "below": ("below_row",),
            "h": ("h_row",),
            "c": ("c_row",),
            "given": ("given_step", "given_row"),
        }
        for field in ("weight", "bias", "below", "below_bias", "h", "c", "given"):
            load: ir.Load | None = getattr(cell, field)
            if load is None:
                continue
            offset: object = load.view.offset
            if field in ("h", "c"):
                offset = f"first_{field}{len(self.offsets)}"
                self.offsets[str(offset)] = load.view.offset
            yield f"cell.{field} = b_{load.buffer} + {offset};"
            for name, stride in zip(strides.get(field, ()), load.view.strides, strict=False):
                yield f"cell.{name} = {stride};"

    def _weights(self) -> str:
        """C statements that bring a block's weights into their memory and define the functions that read them."""
        fields = [("own", "weight"), *([("below", "below")] if self.shape.products > 1 else [])]
        parts = []
        for number, (whose, field) in enumerate(fields):
            guarded = whose == "below"
            holes = {"WHOSE": whose, "FIELD": field, "NUMBER": str(number)}
            holes |= {"CONDITION": "stacked ? " if guarded else "", "ELSE": " : float4{}" if guarded else ""}
            text = _HOMES[self.home]
            for key, value in holes.items():
                text = text.replace(f"@{key}@", value)
            parts.append(text)
        return "\n".join(parts)

    def _stores(self) -> list[str]:
        """C statements that store the last layer's states, and after the last step those of all layers."""
        kernel, lines = self.kernel, list[str]()
        if kernel.stores:
            views = [leaf.view for leaf in body_leaves(kernel.stores)] + [store.view for store in kernel.stores]
            names = ("at_direction", "at_step", "at_row", "at_unit")
            space = Space(kernel.shape, names, {v: v for v in views}, index_type(kernel.shape, views))
            body = make_emitter(space, [], {"acc": "acc"}, "s")
            body.store_all(kernel.stores, space.offset, self.plan.buffers)
            last = (len(kernel.layers) - 1) * kernel.shape[0]
            own = ", ".join(f"{name} = {name.removeprefix('at_')}" for name in names)
            lines += [f"if (which >= {last}) {{", f"const {space.index} {own};", *body.lines, "}"]
        for name, value in ((kernel.last_h, "h[i]"), (kernel.last_c, "c[i]")):
            if name:
                at = "((first_layer + which) * BATCH + row) * HIDDEN + unit"
                kept = CUDA_DIALECT.store(value, self.dtype)
                lines.append(f"if (walked == STEPS - 1) b_{name}[{at}] = {kept};")
        return lines

    def _holes(self) -> dict[str, object]:
        """Values for the holes of recurrence.cu; sets `arguments`, those of the launch."""
        kernel, shape = self.kernel, self.shape
        directions, steps, batch, hidden = kernel.shape
        written = list(dict.fromkeys([*(store.buffer for store in kernel.stores), *last_states(kernel)]))
        loads = [*(load.buffer for load in cell_loads(kernel)), *sorted(reads(kernel))]
        read = [name for name in dict.fromkeys(loads) if name not in written]
        cells = indent(self._cells())
        signature, arguments = list_parameters(self.plan, read, written)
        self.arguments: list[launches.Argument] = [*arguments, *self.offsets.values()]
        signature = ", ".join([signature, *(f"long long {name}" for name in self.offsets)])

        def widen(text: str) -> str:
            """C text of a stored element as float32."""
            return element_load(text, self.dtype)

        home = {"registers": "in registers", "shared": "in shared memory", "memory": "not on chip"}[self.home]
        return {
            **{"NAME": self.name, "PARAMETERS": signature, "ELEMENT": element_type(self.dtype), "CELL": kernel.cell},
            **{"GATES": ir.GATES[kernel.cell], "HIDDEN": hidden, "PADDED": -(-hidden // 4) * 4, "STEPS": steps},
            **{"BATCH": batch, "DIRECTIONS": directions, "LAYERS": len(kernel.layers), "HOME": home},
            **{"UNITS": shape.units, "SPLITS": shape.splits, "SLICES": shape.slices, "TILE": shape.tile},
            **{"THREADS": shape.threads, "K_LANES": shape.part.k_lanes, "K_WARPS": shape.part.k_warps},
            **{"R": shape.part.rows, "J": shape.part.vectors, "STACKED": str(shape.products > 1).lower()},
            **{f"WIDEN_{n}": widen(f"from[{n}]") for n in range(4)},
            "WIDEN_H": widen("cell.h[row * cell.h_row + unit]"),
            "WIDEN_C": widen("cell.c[row * cell.c_row + unit]"),
            "WIDEN_GIVEN": widen("cell.given[step * cell.given_step + row * cell.given_row + at]"),
            "WIDEN_BELOW_BIAS": widen("cell.below_bias[at]"),
            "WIDEN_BIAS": widen("cell.bias[at]"),
            "CELLS": cells,
            "WEIGHTS": self._weights(),
            "UNROLL": "#pragma unroll" if self.home == "registers" else "#pragma unroll 1",
            "BELOW": _BELOW.replace("@APART@", _APART if shape.sums > 1 else "") if shape.products > 1 else "",
            "APART": str(shape.sums > 1).lower(),
            "AT_ONCE": shape.at_once,
            "STEP": indent(_STEP[kernel.cell], 4),
            "STORE": indent(self._stores(), 4),
        }

    def _choices(self) -> dict[str, Choice]:
        """The values of all tunables."""
        shape = self.shape
        chosen = {"units": shape.units, "tile": shape.tile, "threads": shape.threads, "lanes": shape.lanes}
        return {**chosen, "weights": self.home}

    def print(self) -> ir.PrintedKernel:
        """The printed kernel: a launch that clears the exchanged states, if blocks exchange any, and the one that walks
        all steps."""
        shape = self.shape
        _, steps, batch, hidden = self.kernel.shape
        source = fill(read_library_text("cuda/rows/recurrence.cu"), self._holes())
        vectors = shape.cells * steps * batch * -(-hidden // 4) if shape.hands_over else 1
        exchanged = launches.workspace_argument(0)
        blocks = min(_CLEARING_BLOCKS, -(-vectors // _CLEARING_THREADS))
        clear = Launch(f"{self.name}_clear", (blocks, 1, 1), (_CLEARING_THREADS, 1, 1), (exchanged, vectors))
        args = (*self.arguments, exchanged)
        walk = Launch(
            self.name,
            (shape.blocks, 1, 1),
            (shape.threads, 1, 1),
            args,
            shape.shared_bytes(self.home),
            cluster=launches.ALL_BLOCKS,
        )
        return ir.PrintedKernel(
            functions=source,
            call=launches.encode([clear, walk] if shape.hands_over else [walk]),
            template="recurrence",
            choices=self._choices(),
            tunables=self.tunables,
            workspace_bytes=vectors * 16,
            launches=1 + shape.hands_over,
            shared=(read_library_text("cuda/rows/exchange.cuh"),),
        )


def print_recurrence(
    kernel: ir.RecurrentKernel, plan: ir.Plan, device: Device, choices: dict[str, Choice]
) -> ir.PrintedKernel:
    """CUDA of a RecurrentKernel of float32, float16 or bfloat16; arithmetic and states are float32.

    `choices` may hold:
    - "units": units of a layer in a block
    - "tile": sequences that a block takes at a time
    - "threads": threads of a block
    - "lanes": lanes of a warp that share a row of weights
    - "weights": the memory that holds a block's weights ("registers", "shared" or "memory")
    A value that is not legal for this kernel gives way to the default.

    Raises CannotLower for other types and for layers that do not fit on the device."""
    return _Recurrence(kernel, plan, device, choices).print()
