"""The CUDA candidate's source text and the Python that launches it, from plans and printed kernels.

Each entry (captured shape) becomes a list of prepared launches and one straight-line function: check the inputs, put
pointers into slots, allocate outputs and one scratch block, run the launches, return the outputs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from foundry.knowledge.compiler.cuda.dialect import runtime_header
from foundry.knowledge.compiler.cuda.launches import KERNEL_PREFIX, Argument, Launch, TensorMap, decode
from foundry.knowledge.compiler.cuda.sharing import share_texts
from foundry.knowledge.compiler.file.assemble import Body, Entry
from foundry.knowledge.compiler.file.python_text import (
    argument_text,
    call_text,
    calls_text,
    exact_strides,
    find_empty,
    find_tensors,
    held_text,
    inputs_of,
    is_parameter,
    labels_of,
    memory_of,
    parameter_keys,
    place_temporaries,
    refusals,
    results_text,
    span_bytes,
    traffic_of,
    tuple_text,
    variable,
    write_back_text,
)
from foundry.knowledge.compiler.file.texts import read_library_text, special_functions
from foundry.knowledge.compiler.ir.access import is_prepared
from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.kernels import Buffer, Plan, TorchCall
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import contiguous_strides

COMPILER = "nvcc"
# No fast-math forms: NaN and infinities keep their meaning. 177 and 550: unused index variables of generated loops.
FLAGS = ("-cubin", "-std=c++17", "-O3", "--diag-suppress=177,550", "-Xptxas=-v")
_HEADERS = {
    "__half": "cuda_fp16.h",
    "__nv_bfloat16": "cuda_bf16.h",
}  # header by the C++ type that needs it; each takes 0.1 s
_ALIGN = 256
_DEVICES = {"cpu": "device", "cuda": "device"}  # an operator's device argument becomes the device of the call
_WORKSPACE = "workspace+"
_PREPARED = "prepared+"
_MAP_TYPES = {"bool": 0, "float16": 6, "float32": 7, "bfloat16": 9}  # CUtensorMapDataType


_BROUGHT = '''def _brought(tensor, key, state, device):
    """A plain attribute of the model on the device of the call: Module.to() leaves it where the constructor made it."""
    if tensor.device == device:
        return tensor
    version = -1 if tensor.is_inference() else tensor._version
    held = state.get((key, device))
    if held is None or held[0] is not tensor or held[1] != version:
        held = state[(key, device)] = (tensor, version, tensor.to(device))
    return held[2]'''


def cuda_module(entries: Sequence[Entry], device: Device) -> Body:
    """CUDA source and holes of `module.py.txt`; each entry is one captured shape."""
    parameters = list(dict.fromkeys(key for entry in entries for key in parameter_keys(entry.plan)))
    parts = [_EntryText(entry, index, parameters, alone=len(entries) == 1) for index, entry in enumerate(entries)]
    shared = dict.fromkeys(text for entry in entries for kernel in entry.kernels if kernel for text in kernel.shared)
    kernels = "\n".join([*shared, *[part.source for part in parts]])
    headers = "".join(f"#include <{header}>\n" for name, header in _HEADERS.items() if name in kernels)
    dispatch = ",\n".join(f"    ({_print_shapes(entry.plan)}, _forward_{index})" for index, entry in enumerate(entries))
    prepares = any(part.prepares for part in parts)
    calls = calls_text([entry.plan for entry in entries], parameters, prepares=prepares)
    buffers = [buffer for entry in entries for buffer in entry.plan.buffers.values()]
    stays_behind = any(is_parameter(buffer) and buffer.role == "constant" for buffer in buffers)
    brought = [_BROUGHT] if stays_behind else []
    forwards = [calls, *brought, *[part.forward for part in parts]]
    feature = max((kernel.arch_feature for entry in entries for kernel in entry.kernels if kernel), default="")
    about: dict[str, object] = {
        "target": "cuda",
        "compiler": COMPILER,
        "flags": list(FLAGS),
        "entry": "foundry_forward",
        "arch": device.arch + feature,
        "launches": {launch.kernel: _launch_fact(launch) for part in parts for launch in part.launches},
        "shapes": [{b.source: list(b.shape) for b in inputs_of(entry.plan)} for entry in entries],
        "labels": sorted({label for entry in entries for label in labels_of(entry)}),
    }
    holes = {"FORWARDS": "\n\n\n".join([*forwards, f"_BY_SHAPE = [\n{dispatch},\n]"])}
    runtime = runtime_header() + (read_library_text("cuda/float8.cuh") if "float8_" in kernels else "")
    runtime = f"{runtime}\n{special_functions(kernels)}"
    return Body(about=about, source=f"{headers}{runtime}{kernels}", compiler=COMPILER, holes=holes)


def _launch_fact(launch: Launch) -> dict[str, object]:
    """A launch's grid, block and dynamic shared memory in bytes, as the candidate's record of facts has them."""
    return {"grid": list(launch.grid), "block": list(launch.block), "shared_bytes": launch.shared_bytes}


def _moved(argument: Argument, by: int) -> Argument:
    """The argument with `by` bytes added to its offset in prepared memory; other arguments unchanged."""
    if isinstance(argument, TensorMap):
        return replace(argument, memory=str(_moved(argument.memory, by)))
    if isinstance(argument, str) and argument.startswith(_PREPARED):
        return f"{_PREPARED}{int(argument.removeprefix(_PREPARED)) + by}"
    return argument


def _print_shapes(plan: Plan) -> str:
    """Python text of (number, shape, required strides) of each input that the plan reads.

    Single numbers are left out: they may come without a shape."""
    inputs = [buffer for buffer in inputs_of(plan) if buffer.shape]
    return tuple_text([f"({b.source}, {tuple_text(b.shape)}, {exact_strides(b)})" for b in inputs])


def _print_empty(buffer: Buffer) -> str:
    """Python text that allocates a buffer's tensor on `device`, with its strides."""
    tail = f"dtype=torch.{buffer.dtype}, device=device)"
    if buffer.strides == contiguous_strides(buffer.shape):
        return f"torch.empty({tuple_text(buffer.shape)}, {tail}"
    return f"torch.empty_strided({tuple_text(buffer.shape)}, {tuple_text(buffer.strides)}, {tail}"


class _EntryText:
    """The texts of one captured shape: `source` is its CUDA, `forward` its Python, `launches` its launches, those that
    prepare memory first."""

    def __init__(self, entry: Entry, index: int, parameters: Sequence[str], *, alone: bool) -> None:
        self._plan, self._index = entry.plan, index
        self._kernels = share_texts(entry.plan.steps, entry.kernels)
        self._alone = alone
        self._position = {key: position for position, key in enumerate(parameters)}
        self._traffic = traffic_of(self._plan)
        self._visible = find_tensors(self._plan, self._traffic)
        self._workspace_bytes = max((kernel.workspace_bytes for kernel in self._kernels if kernel), default=0)
        placed = place_temporaries(self._plan, self._traffic, self._visible, self._workspace_bytes, _ALIGN)
        self._offsets, self._scratch_bytes = placed
        self._slots: dict[str, int] = {}
        self._constants: dict[int, int] = {}
        self.launches: list[Launch] = []
        self._spans: dict[int, tuple[int, int]] = {}
        decoded = self._decoded()
        early = {at for at, step in enumerate(self._plan.steps) if is_prepared(step, self._plan.buffers)}
        for position, found in decoded.items():
            self.launches += [launch for launch in found if launch.prepares]
            self.launches += [launch for launch in found if not launch.prepares and position in early]
        self._preparing = len(self.launches)
        self.prepares = self._preparing > 0
        for position, found in decoded.items():
            begin = len(self.launches)
            self.launches += [launch for launch in found if not launch.prepares and position not in early]
            self._spans[position] = (begin, len(self.launches))
        self._table = [self._literal(launch) for launch in self.launches]
        self.source = self._rename_text("\n".join(dict.fromkeys(k.functions for k in self._kernels if k)))
        self.forward = self._forward()

    def _decoded(self) -> dict[int, list[Launch]]:
        """The launches of each kernel, by its position in the plan, under the kernel names of this shape.

        Gives every kernel, and every value made of parameters, its own part of the prepared memory (256-byte aligned):
        sets `_prepared_bytes` and, for values, their offsets in `_derived`."""
        found: dict[int, list[Launch]] = {}
        self._prepared_bytes = 0
        for position, kernel in enumerate(self._kernels):
            if kernel is not None:
                found[position] = [self._rename_launch(launch, self._prepared_bytes) for launch in decode(kernel.call)]
                self._prepared_bytes += round_up(kernel.prepared_bytes, _ALIGN)
        self._derived: dict[str, int] = {}
        for name, buffer in self._plan.buffers.items():
            if buffer.role == "prepared":
                self._derived[name] = self._prepared_bytes
                self._prepared_bytes += span_bytes(buffer, _ALIGN)
        return found

    def _rename_text(self, text: str) -> str:
        """The text with kernel names prefixed by this shape, unless it is the only one: names must differ."""
        return text if self._alone else re.sub(rf"\b{KERNEL_PREFIX}(?=\w)", f"shape{self._index}_{KERNEL_PREFIX}", text)

    def _rename_launch(self, launch: Launch, prepared: int) -> Launch:
        """The launch with the kernel name of this shape and its prepared memory shifted by `prepared` bytes."""
        args = tuple(_moved(argument, prepared) for argument in launch.args)
        return replace(launch, kernel=self._rename_text(launch.kernel), args=args)

    def _literal(self, launch: Launch) -> str:
        """Python text of a launch, as the candidate's `_table` takes it: name, grid, block, shared bytes, slots of its
        arguments, and the cluster if there is one."""
        slots = [self._slot(argument) for argument in launch.args]
        sizes = f"{launch.grid}, {launch.block}, {launch.shared_bytes}"
        together = f", {launch.cluster}" if launch.cluster != 1 else ""
        return f"({launch.kernel!r}, {sizes}, {tuple_text(slots)}{together})"

    def _slot(self, argument: Argument) -> object:
        """The number of the slot that holds a launch argument at run time; new arguments get the next slot.

        For a tensor map it is (slot of its memory, the driver's number of its type, sizes, strides, box, byte
        offset)."""
        if isinstance(argument, TensorMap):
            kind = _MAP_TYPES[argument.dtype]
            shape = (argument.sizes, argument.stride_bytes, argument.box)
            return (self._slot(argument.memory), kind, *shape, argument.offset_bytes)
        key = memory_of(self._plan, argument) if isinstance(argument, str) else f"int {argument}"
        slot = self._slots.setdefault(key, len(self._slots))
        if isinstance(argument, int):
            self._constants[slot] = argument
        return slot

    # -- Python

    def _forward(self) -> str:
        """Python text of the launches and the function `_forward_<index>` of this shape. The function checks inputs and
        parameters, allocates scratch memory, runs all steps, writes new state back into the model and returns the
        results."""
        index = self._index
        table = f"_table({index}, _LAUNCHES_{index}, {self._constants!r}, {len(self._slots)})"
        lines = [
            f"table = {table}",
            "slots = table.slots",
            "device = torch.device('cuda', torch.cuda.current_device())",
        ]
        lines += refusals(self._plan, "inputs")
        for buffer in inputs_of(self._plan):
            source = f"inputs[{buffer.source}], 'input {buffer.source}'"
            lines += self._check(buffer, source)
        lines += self._parameter_lines()
        lines += self._constant_lines()
        if self._scratch_bytes:
            lines.append(f"scratch = torch.empty({self._scratch_bytes}, dtype=torch.uint8, device=device)")
            lines.append("base = scratch.data_ptr()")
            places = {f"{_WORKSPACE}{offset}": offset for offset in self._offsets_of(_WORKSPACE)} | self._offsets
            lines += [f"slots[{self._slots[k]}] = base + {at}" for k, at in places.items() if k in self._slots]
        lines += self._prepare_lines()
        lines += self._step_lines()
        lines += [
            write_back_text(held_text(key, self._position, "inputs"), variable(name), self._plan.buffers[name])
            for key, name in self._plan.write_backs.items()
        ]
        lines.append(f"return {results_text(self._plan, 'inputs')}")
        body = "\n".join(f"    {line}" for line in lines)
        launches = "\n".join(f"    {literal}," for literal in self._table)
        head = f"_LAUNCHES_{index} = [\n{launches}\n]"
        return f"{head}\n\n\ndef _forward_{index}(inputs, parameters, state):\n{body}"

    def _offsets_of(self, memory: str) -> list[int]:
        """The byte offsets that launch arguments use in a memory; `memory` is "workspace+" or "prepared+"."""
        return [int(key.removeprefix(memory)) for key in self._slots if key.startswith(memory)]

    def _prepare_lines(self) -> list[str]:
        """Lines of Python that make prepared memory again when a parameter, or the stream of the launches, has
        changed."""
        if not self._preparing:
            return []
        given = [item for launch in self.launches[: self._preparing] for item in launch.args]
        memories = dict.fromkeys(item.memory if isinstance(item, TensorMap) else item for item in given)
        buffers = [self._plan.buffers[name] for name in memories if name in self._plan.buffers]
        used = [buffer for buffer in buffers if is_parameter(buffer)]
        tensors = tuple_text([f"parameters[{self._position[buffer.source]}]" for buffer in used])
        slot = f"('prepared', {self._index}, device)"
        places = {f"{_PREPARED}{at}": at for at in self._offsets_of(_PREPARED)} | self._derived
        return [
            "stream = torch.cuda.current_stream().cuda_stream",
            f"held = state.get({slot})",
            f"changed = held is None or not held.holds({tensors}, stream)",
            "if changed:",
            f"    memory = torch.empty({self._prepared_bytes}, dtype=torch.uint8, device=device)",
            f"    held = _Prepared({tensors}, stream, memory)",
            "base = held.memory.data_ptr()",
            *[f"slots[{self._slots[name]}] = base + {at}" for name, at in places.items() if name in self._slots],
            "if changed:",
            f"    table.run(0, {self._preparing})",
            f"    state[{slot}] = held",
        ]

    def _check(self, buffer: Buffer, source: str) -> list[str]:
        """Lines of Python that check a tensor's shape, strides and dtype and put its pointer into its slot. `source` is
        Python text of the tensor and its name for messages."""
        name = variable(buffer.name)
        facts = f"{tuple_text(buffer.shape)}, {tuple_text(buffer.strides)}, torch.{buffer.dtype}"
        lines = [f"{name} = _checked({source}, {facts})"]
        return [*lines, *self._point(buffer.name)]

    def _point(self, name: str) -> list[str]:
        """The line of Python that puts a buffer's pointer into its slot; [] if no launch uses the buffer."""
        return [f"slots[{self._slots[name]}] = {variable(name)}.data_ptr()"] if name in self._slots else []

    def _parameter_lines(self) -> list[str]:
        """Lines of Python that check the model's parameters, buffers and plain attributes; those attributes are first
        copied to the device of the call."""
        lines = []
        for buffer in self._plan.buffers.values():
            if is_parameter(buffer) or buffer.is_in_place:
                held = held_text(buffer.source, self._position, "inputs")
                if buffer.role == "constant":
                    held = f"_brought({held}, {buffer.source!r}, state, device)"
                source = f"{held}, {buffer.source!r}"
                lines += self._check(buffer, source)
        return lines

    def _constant_lines(self) -> list[str]:
        """Lines of Python that fetch each tensor of known values from the state, where the first call on a device puts
        it."""
        lines = []
        for buffer in self._plan.buffers.values():
            if buffer.data is None or (buffer.name not in self._slots and buffer.name not in self._visible):
                continue
            name, key = variable(buffer.name), f"({buffer.name!r}, {self._index}, device)"
            lines.append(f"{name} = state.get({key})")
            lines.append(f"if {name} is None:")
            made = (
                f"torch.tensor({argument_text(list(buffer.data), _DEVICES)}, dtype=torch.{buffer.dtype}, device=device)"
            )
            lines.append(f"    {name} = state[{key}] = _kept({made}.view({tuple_text(buffer.shape)}))")
            lines += self._point(buffer.name)
        return lines

    def _step_lines(self) -> list[str]:
        """Lines of Python that run the plan's steps. Launches between PyTorch calls run together; outputs are allocated
        before the launch that writes them."""
        lines = [f"{variable(buffer.name)} = {_print_empty(buffer)}" for buffer in find_empty(self._plan)]
        given = ("input", "parameter", "constant")
        made = {b.name for b in self._plan.buffers.values() if b.role in given or b.is_in_place}
        begin = end = self._preparing
        for position, step in enumerate(self._plan.steps):
            if isinstance(step, TorchCall):
                if end > begin:
                    lines.append(f"table.run({begin}, {end})")
                begin = end
                lines += self._torch_call(step)
                made |= set(step.results)
                continue
            for name in dict.fromkeys([*self._traffic[position][0], *self._traffic[position][1]]):
                if name in self._visible and name not in made:
                    lines += [f"{variable(name)} = {_print_empty(self._plan.buffers[name])}", *self._point(name)]
                    made.add(name)
            end = self._spans[position][1]
        if end > begin:
            lines.append(f"table.run({begin}, {end})")
        return lines

    def _torch_call(self, step: TorchCall) -> list[str]:
        """Lines of Python that call PyTorch for a step and check the tensors that it returns."""
        lines = [call_text(step, _DEVICES)]
        for name in step.results:
            buffer = self._plan.buffers.get(name)
            if buffer is not None:
                lines += self._check(buffer, f"{variable(name)}, {name!r}")
        return lines
