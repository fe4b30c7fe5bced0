"""Python text that both targets' candidates share: variables, arguments, results, and places of buffers."""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.access import step_buffers
from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.kernels import Buffer, Plan, TorchCall
from foundry.knowledge.compiler.ir.scalar import FLOATING
from foundry.knowledge.opgraph import ITEM_BYTES, Arrangement, Ref, overlaps, written_input

if TYPE_CHECKING:
    from foundry.knowledge.compiler.file.assemble import Entry

Traffic = Sequence[tuple[Sequence[str], Sequence[str]]]  # one (buffers read, buffers written) per step

# Names that the candidates' own Python uses.
_RESERVED = frozenset(
    {
        *("torch", "inputs", "leaves", "parameters", "state", "scratch", "held", "part", "stream"),
        *("table", "slots", "base", "device", "changed", "memory"),
    }
)
_DTYPE_NAMES = frozenset(ITEM_BYTES) | {"complex64", "complex128"}
_TORCH_NAMES = _DTYPE_NAMES | {"contiguous_format", "channels_last", "channels_last_3d", "preserve_format", "strided"}


def labels_of(entry: Entry) -> Iterator[str]:
    """Labels that the plan and its kernels declare about their arithmetic."""
    yield from entry.plan.labels
    for kernel in entry.kernels:
        yield from kernel.labels if kernel else ()


def inputs_of(plan: Plan) -> list[Buffer]:
    """The inputs that a plan reads, in the order of the task's leaves."""
    return sorted((b for b in plan.buffers.values() if b.role == "input"), key=lambda b: int(b.source))


def exact_strides(buffer: Buffer) -> tuple[int, ...] | None:
    """The strides that an input must have because its elements share memory, so that no copy could have them; else
    None."""
    return buffer.strides if overlaps(buffer.shape, buffer.strides) else None


def is_parameter(buffer: Buffer) -> bool:
    """True if the buffer comes from the module's parameters and buffers; constants with data are in the file."""
    return buffer.role in ("parameter", "constant") and buffer.data is None


def parameter_keys(plan: Plan) -> list[str]:
    """Names of the module's tensors that a plan reads or writes."""
    found = [b.source for b in plan.buffers.values() if is_parameter(b) or b.is_in_place]
    return [key for key in dict.fromkeys([*found, *plan.write_backs]) if not written_input(key)]


def held_text(key: str, slots: Mapping[str, int], inputs: str) -> str:
    """The expression for the tensor that a key of `Plan.write_backs` names; `inputs` names the list of inputs."""
    place = written_input(key)
    return f"{inputs}[{place}]" if place else f"parameters[{slots[key]}]"


def write_back_text(held: str, value: str, buffer: Buffer) -> str:
    """The line that stores a new value in `held`, an input or a tensor of the module. The value may have been computed
    in another shape, because forward may write through a view."""
    return f"_note_change({held}, {value})" if buffer.is_in_place else f"{held}.copy_({value}.view_as({held}))"


def variable(name: str) -> str:
    """A buffer's name in the candidate's Python."""
    taken = keyword.iskeyword(name) or name in _RESERVED or name.startswith("_") or hasattr(builtins, name)
    return f"{name.lstrip('_')}_" if taken else name


def tuple_text(values: Sequence[object]) -> str:
    """A Python tuple's source text of these values."""
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def argument_text(argument: object, devices: Mapping[str, str]) -> str:
    """An operator's argument as Python source. `devices` maps a device's name ("cpu", "cuda") to its text."""
    if isinstance(argument, Ref):
        return variable(argument.ref)
    if isinstance(argument, list | tuple):
        return f"[{', '.join(argument_text(item, devices) for item in argument)}]"
    if isinstance(argument, str):
        name = argument.removeprefix("torch.")
        if (kind := name.split(":")[0]) in devices:
            return devices[kind]
        return f"torch.{name}" if name in _TORCH_NAMES else repr(argument)
    if isinstance(argument, float) and not math.isfinite(argument):
        return f"float('{argument!r}')"
    return repr(argument)


def calls_text(plans: Sequence[Plan], parameters: Sequence[str], *, prepares: bool) -> str:
    """The text that starts every call of a candidate; with `prepares` also the check for changed parameters."""
    texts = [read_library_text("file/calls.py.txt").strip()]
    if prepares:
        texts.append(read_library_text("file/prepared.py.txt").strip())
    if any(plan.arrangement.has_records for plan in plans):
        texts.append(read_library_text("file/records.py.txt").strip())
    constants = f"_PARAMETERS = {list(parameters)!r}\n_DIFFERENTIABLE = {any(map(_is_differentiable, plans))}"
    return "\n\n\n".join([*texts, constants])


def _is_differentiable(plan: Plan) -> bool:
    """True if an output or a new value of a buffer is a floating-point number, which may have a gradient."""
    names = [*(view.buffer for view in plan.outputs if view.buffer), *plan.write_backs.values()]
    return any(plan.buffers[name].dtype in FLOATING for name in names)


def call_text(step: TorchCall, devices: Mapping[str, str]) -> str:
    """A call of a PyTorch operator, its results assigned."""
    arguments = [argument_text(argument, devices) for argument in step.args]
    arguments += [f"{name}={argument_text(value, devices)}" for name, value in step.kwargs.items()]
    results = [variable(name) if name else "_" for name in step.results]  # "" for an undefined result
    return f"{', '.join(results)} = torch.ops.{step.target}({', '.join(arguments)})"


def results_text(plan: Plan, inputs: str) -> str:
    """The Python expression that the candidate's forward returns: inputs, buffers, views of them and literals, nested
    as PyTorch's.

    `inputs` names the list of inputs.
    """
    items = []
    for view in plan.outputs:
        if view.given:
            items.append(f"{inputs}[{view.given}]")
            continue
        if not view.buffer:
            items.append(repr(view.literal))
            continue
        buffer = plan.buffers[view.buffer]
        name = variable(view.buffer)
        same = (view.shape, view.strides, view.offset) == (buffer.shape, buffer.strides, 0)
        geometry = f"{tuple_text(view.shape)}, {tuple_text(view.strides)}, {view.offset}"
        items.append(name if same else f"{name}.as_strided({geometry})")
    return _arranged_text(plan.arrangement, iter(items))


def _arranged_text(arrangement: Arrangement, results: Iterator[str]) -> str:
    """An expression that builds the nested result from the next of `results`."""
    if arrangement.kind == "leaf":
        return next(results)
    items = [_arranged_text(item, results) for item in arrangement.items]
    if arrangement.kind == "record":
        return f"_record_type{tuple_text(tuple(map(repr, (arrangement.name, *arrangement.keys))))}({', '.join(items)})"
    if arrangement.kind == "dict":
        return f"{{{', '.join(f'{key!r}: {item}' for key, item in zip(arrangement.keys, items, strict=True))}}}"
    return f"[{', '.join(items)}]" if arrangement.kind == "list" else tuple_text(items)


def refusals(plan: Plan, inputs: str) -> list[str]:
    """Lines that refuse other arguments than the captured ones; `inputs` names the list of their leaves."""
    takes = plan.graph.takes if plan.graph else None
    lines = [] if takes is None else [f"_only(len({inputs}), 'number of inputs', {takes.leaves})"]
    return lines + [f"_only({inputs}[{key}], 'input {key}', {value!r})" for key, value in plan.fixed.items()]


def traffic_of(plan: Plan) -> list[tuple[list[str], list[str]]]:
    """(buffers read, buffers written) by each step, by the names of their memory."""

    def memories(names: Sequence[str]) -> list[str]:
        """Memories of these buffers, each once, in order."""
        return list(dict.fromkeys(memory_of(plan, name) for name in names))

    return [(memories(reads), memories(writes)) for reads, writes in map(step_buffers, plan.steps)]


def memory_of(plan: Plan, name: str) -> str:
    """The buffer that owns this buffer's memory; a name that is no buffer stays."""
    buffer = plan.buffers.get(name)
    return name if buffer is None else buffer.memory or name


def find_tensors(plan: Plan, traffic: Traffic) -> set[str]:
    """Buffers that are tensors of their own: outputs, operands of PyTorch calls, values that are written back."""
    found = {name for name, buffer in plan.buffers.items() if buffer.role == "output" or buffer.is_in_place}
    found |= {view.buffer for view in plan.outputs if view.buffer}
    found |= set(plan.write_backs.values())
    for step, (reads, writes) in zip(plan.steps, traffic, strict=True):
        if isinstance(step, TorchCall):
            found |= {*reads, *writes}
    return found


def find_empty(plan: Plan) -> list[Buffer]:
    """Buffers without elements that forward makes: no kernel writes them."""
    return [buffer for buffer in plan.buffers.values() if not buffer.numel and buffer.role in ("temporary", "output")]


def span_bytes(buffer: Buffer, align: int) -> int:
    """Bytes from the first to the last element of a buffer with strides, rounded up to `align` bytes."""
    last = sum((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
    return round_up((1 + last) * ITEM_BYTES[buffer.dtype], align)


def place_temporaries(
    plan: Plan, traffic: Traffic, tensors: Collection[str], workspace_bytes: int, align: int
) -> tuple[dict[str, int], int]:
    """(byte offsets of temporaries in scratch memory, bytes of all scratch memory).

    Temporaries lie behind the kernels' workspace and reuse dead memory (first fit). `tensors` lie elsewhere.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, (reads, writes) in enumerate(traffic):
        for name in (*reads, *writes):
            first.setdefault(name, position)
            last[name] = position
    base = round_up(workspace_bytes, align)
    placed: list[tuple[int, int, int]] = []  # begin, end, last use
    offsets: dict[str, int] = {}
    for name in sorted(first, key=lambda item: first[item]):
        buffer = plan.buffers[name]
        if buffer.role != "temporary" or name in tensors:
            continue
        size = span_bytes(buffer, align)
        start = base
        for begin, end in sorted((begin, end) for begin, end, use in placed if use >= first[name]):
            if start + size <= begin:
                break
            start = max(start, end)
        offsets[name] = start
        placed.append((start, start + size, last[name]))
    return offsets, max([base, *[end for _, end, _ in placed]])
