"""The CPU candidate's C++ entry points and the Python that calls them, from plans and printed kernels."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    parameter_keys,
    place_temporaries,
    refusals,
    results_text,
    traffic_of,
    tuple_text,
    variable,
    write_back_text,
)
from foundry.knowledge.compiler.file.texts import read_library_text, special_functions
from foundry.knowledge.compiler.ir.access import is_prepared, step_buffers
from foundry.knowledge.compiler.ir.kernels import Buffer, Kernel, Plan, PrintedKernel, TorchCall
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, EIGHT_BITS
from foundry.knowledge.opgraph import DType, contiguous_strides

COMPILER = "g++"
# -O3 without -ffast-math: NaN and infinities keep their meaning. Neither errno nor floating-point traps are used.
# GCC 12 unrolls a loop around an `omp simd` one and jams it before it makes vectors, and then makes none: a mean over a
# mask took 5.4 times as long.
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-loop-unroll-and-jam"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC"),
)
_ALIGN = 64
_THREADS = "torch.get_num_threads()"  # last argument of every entry point: the size of its teams of threads

Step = Kernel | TorchCall


def cpu_module(entries: Sequence[Entry]) -> Body:
    """C++ source and holes of `module.py.txt`; each entry is one captured shape."""
    parameters = list(dict.fromkeys(key for entry in entries for key in parameter_keys(entry.plan)))
    parts = [_EntryText(entry, index, parameters, alone=len(entries) == 1) for index, entry in enumerate(entries)]
    shared = dict.fromkeys(text for entry in entries for kernel in entry.kernels if kernel for text in kernel.shared)
    ordered = sorted(shared, key=lambda text: not text.startswith("#define"))  # what is asked of a text, before it
    own = "\n".join([*ordered, *[part.source for part in parts]])
    headers = ["cpu/runtime.h", *(["cpu/float8.h"] if "float8_" in own else [])]
    source = "\n".join(filter(None, [*map(read_library_text, headers), special_functions(own), own]))
    functions = [name for part in parts for name in part.functions]
    prepares = any(part.prepares for part in parts)
    calls = calls_text([entry.plan for entry in entries], parameters, prepares=prepares)
    holes = {
        "POINTERS": str(max((part.pointers for part in parts), default=1)),
        "FORWARDS": "\n\n\n".join([calls, *[part.forward for part in parts]]),
        "DISPATCH": _dispatch([entry.plan for entry in entries]),
    }
    shapes = [{b.source: list(b.shape) for b in inputs_of(entry.plan)} for entry in entries]
    about: dict[str, object] = {
        "target": "cpu",
        "compiler": COMPILER,
        "flags": list(FLAGS),
        "entry": "foundry_forward",
        "functions": functions,
        "shapes": shapes,
        "labels": sorted({label for entry in entries for label in labels_of(entry)}),
    }
    return Body(about=about, source=source, compiler=COMPILER, holes=holes)


def _dispatch(plans: Sequence[Plan]) -> str:
    """Python text that calls the function of the shape that the inputs have; the last shape takes all others."""
    lines = []
    for index, plan in enumerate(plans[:-1]):
        inputs = [(f"leaves[{b.source}]", b) for b in inputs_of(plan) if b.shape]
        tests = [f"{leaf}.shape == {tuple_text(b.shape)}" for leaf, b in inputs]
        tests += [f"{leaf}.stride() == {exact}" for leaf, b in inputs if (exact := exact_strides(b))]
        lines += [
            f"    if {' and '.join(tests or ['True'])}:",
            f"        return _forward_{index}(leaves, parameters, state)",
        ]
    lines.append(f"    return _forward_{len(plans) - 1}(leaves, parameters, state)")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Segment:
    """Consecutive native steps between PyTorch calls."""

    function: str
    steps: tuple[int, ...]
    buffers: tuple[str, ...]  # pointers in order; scratch memory follows


class _EntryText:
    """The texts of one captured shape: `source` is its C++, `forward` its Python, `functions` the C++ entry points."""

    def __init__(self, entry: Entry, index: int, parameters: Sequence[str], *, alone: bool) -> None:
        self._plan, self._kernels, self._index = entry.plan, entry.kernels, index
        self._suffix = "" if alone else f"_{index}"
        self._slots = {key: position for position, key in enumerate(parameters)}
        self._traffic = traffic_of(self._plan)
        self._visible = find_tensors(self._plan, self._traffic)
        workspace_bytes = max((kernel.workspace_bytes for kernel in self._kernels if kernel), default=0)
        placed = place_temporaries(self._plan, self._traffic, self._visible, workspace_bytes, _ALIGN)
        self._offsets, self._scratch_bytes = placed
        self._prepared = self._prepared_sizes()
        self._early = {at for at, step in enumerate(self._plan.steps) if is_prepared(step, self._plan.buffers)}
        self._derived = [name for name, buffer in self._plan.buffers.items() if buffer.role == "prepared"]
        self._segments = self._split()
        self.functions = [segment.function for segment in self._segments]
        if self.prepares:
            self.functions.append(self._prepare_name)
        self.pointers = max([*(len(segment.buffers) for segment in self._segments), self._prepare_pointers()]) + 2
        self.source = self._source()
        self.forward = self._forward()

    # -- what is where

    def _prepared_sizes(self) -> dict[str, int]:
        """Number of floats of each prepared layout, by its name."""
        return {name: size for kernel in self._kernels if kernel for name, size in kernel.prepared_sizes.items()}

    def _split(self) -> list[_Segment]:
        """The runs of native steps between PyTorch calls, in order; steps that only prepare are left out."""
        segments: list[_Segment] = []
        run: list[int] = []
        for position, step in enumerate([*self._plan.steps, None]):
            if position in self._early:
                continue
            if step is not None and not isinstance(step, TorchCall):
                run.append(position)
                continue
            if run:
                segments.append(self._segment(tuple(run), len(segments)))
            run = []
        return segments

    def _segment(self, steps: tuple[int, ...], number: int) -> _Segment:
        """The segment of these steps: its C++ function and the buffers it gets pointers to."""
        used = [name for position in steps for names in self._traffic[position] for name in names]
        prepared = [name for position in steps for name in self._kernel(position).prepared_sizes]
        pointers = [name for name in dict.fromkeys(used) if self._is_pointer(name)]
        part = f"_{number}" if any(isinstance(step, TorchCall) for step in self._plan.steps) else ""
        return _Segment(f"foundry_forward{self._suffix}{part}", steps, (*pointers, *prepared))

    def _kernel(self, position: int) -> PrintedKernel:
        """The printed kernel of a native step."""
        kernel = self._kernels[position]
        assert kernel is not None, "a native step has a printed kernel"
        return kernel

    def _is_pointer(self, name: str) -> bool:
        """True if a buffer comes as a pointer, not as scratch memory or a constant of the C++ text."""
        return name not in self._offsets and self._plan.buffers[name].data is None

    # -- C++

    def _source(self) -> str:
        """C++ text of the shape: constants, kernels, entry points; in a namespace if there are several shapes."""
        functions = list(dict.fromkeys(kernel.functions for kernel in self._kernels if kernel))
        constants = [self._constant(b) for b in self._plan.buffers.values() if b.data is not None]
        body = "\n".join([*constants, *functions])
        if self._suffix:
            body = f"namespace shape{self._index} {{\n{body}\n}}  // namespace shape{self._index}\n"
        entries = [self._segment_function(segment) for segment in self._segments]
        if self.prepares:
            entries.append(self._prepare_function())
        return "\n".join([body, *entries])

    def _constant(self, buffer: Buffer) -> str:
        """C++ definition of an array of known values."""
        values = [CPU_DIALECT.constant(value, buffer.dtype) for value in buffer.data or ()]
        if buffer.dtype in ("float16", "bfloat16"):
            storage, bits = CPU_DIALECT.storage[buffer.dtype], [_half_bits(v, buffer.dtype) for v in buffer.data or ()]
            values = [f"{storage}{{{value}}}" for value in bits]
        if buffer.dtype in EIGHT_BITS:
            values = [CPU_DIALECT.store(value, buffer.dtype) for value in values]
        text = ", ".join(values)
        return f"static const {CPU_DIALECT.storage[buffer.dtype]} b_{buffer.name}[] = {{{text}}};"

    def _segment_function(self, segment: _Segment) -> str:
        """C++ text of the entry point that runs a segment's kernels."""
        lines = [self._pointer(name, slot) for slot, name in enumerate(segment.buffers)]
        lines += [f"char* scratch = (char*)buffers[{len(segment.buffers)}];", _print_team(len(segment.buffers) + 1)]
        local = {name for position in segment.steps for names in self._traffic[position] for name in names}
        for name in self._offsets:
            if name in local:
                storage = CPU_DIALECT.storage[self._plan.buffers[name].dtype]
                lines.append(f"{storage}* b_{name} = ({storage}*)(scratch + {self._offsets[name]});")
        lines += self._aliases(segment.steps)
        if any(self._kernel(position).workspace_bytes for position in segment.steps):
            lines.append("char* workspace = scratch;")
        for position in segment.steps:
            lines.append("{\n    " + self._kernel(position).call.strip().replace("\n", "\n    ") + "\n  }")
        return self._function(segment.function, [*lines, "(void)scratch;"])

    def _aliases(self, positions: Iterable[int]) -> list[str]:
        """Declarations of the second names of memory that a step both reads and writes."""
        found = [self._plan.buffers[name] for at in positions for name in step_buffers(self._plan.steps[at])[0]]
        aliases = dict.fromkeys(buffer for buffer in found if buffer.memory)
        return [f"const {CPU_DIALECT.storage[b.dtype]}* b_{b.name} = b_{b.memory};" for b in aliases]

    def _function(self, name: str, lines: Sequence[str]) -> str:
        """C++ text of an entry point with these statements."""
        using = [f"using namespace shape{self._index};"] if self._suffix else []
        body = "\n".join(f"  {line}" for line in [*using, *lines, "return 0;"])
        return f'extern "C" int {name}(void** buffers) {{\n{body}\n}}\n'

    def _pointer(self, name: str, slot: int) -> str:
        """The C++ declaration of a buffer's pointer, taken from slot `slot`."""
        if name in self._prepared:
            return f"float* b_{name} = (float*)buffers[{slot}];"
        buffer = self._plan.buffers[name]
        const = "const " if buffer.role in ("input", "parameter", "constant") else ""
        kind = f"{const}{CPU_DIALECT.storage[buffer.dtype]}*"
        return f"{kind} b_{name} = ({kind})buffers[{slot}];"

    @property
    def prepares(self) -> bool:
        """True if layouts or values are kept between calls."""
        return bool(self._prepared or self._derived)

    @property
    def _prepare_name(self) -> str:
        """The name of the entry point that prepares layouts and values."""
        return f"foundry_prepare{self._suffix}"

    def _prepare_inputs(self) -> list[str]:
        """Names of the parameters from which prepared layouts and values are made."""
        text = "\n".join(code for kernel in self._kernels if kernel for code in kernel.prepare.values())
        used = set(re.findall(r"\bb_(\w+)", text))
        used |= {name for position in self._early for name in self._traffic[position][0]}
        return [name for name, buffer in self._plan.buffers.items() if name in used and is_parameter(buffer)]

    def _prepare_pointers(self) -> int:
        """Number of pointers that the preparing entry point takes."""
        return len(self._prepare_inputs()) + len(self._held) if self.prepares else 0

    def _prepare_function(self) -> str:
        """C++ text of the entry point that makes all prepared layouts and values."""
        names = [*self._prepare_inputs(), *self._held]
        lines = [self._pointer(name, slot) for slot, name in enumerate(names)]
        lines += [f"char* workspace = (char*)buffers[{len(names)}];", _print_team(len(names) + 1)]
        lines += self._aliases(sorted(self._early))
        for position, kernel in enumerate(self._kernels):
            texts = [*kernel.prepare.values(), *([kernel.call] if position in self._early else [])] if kernel else []
            lines += ["{\n    " + code.strip().replace("\n", "\n    ") + "\n  }" for code in texts]
        return self._function(self._prepare_name, [*lines, "(void)workspace;"])

    @property
    def _held(self) -> list[str]:
        """Names of memory that is kept between calls: values made of parameters, then layouts of weights."""
        return [*self._derived, *self._prepared]

    # -- Python

    def _forward(self) -> str:
        """Python text of the function `_forward_<index>` of this shape. It checks inputs and parameters, prepares, runs
        all segments, writes new state back into the model and returns the results."""
        lines = refusals(self._plan, "leaves")
        for buffer in inputs_of(self._plan):
            leaf = f"leaves[{buffer.source}], 'input {buffer.source}'"
            lines.append(f"{variable(buffer.name)} = _checked({leaf}, {_print_geometry(buffer)})")
        for buffer in self._plan.buffers.values():
            if is_parameter(buffer) or buffer.is_in_place:
                lines.append(
                    f"{variable(buffer.name)} = _checked({self._held_text(buffer.source)}, {buffer.source!r}, "
                    f"{_print_geometry(buffer)})"
                )
            elif buffer.data is not None and buffer.name in self._visible:
                data = f"torch.tensor({argument_text(list(buffer.data), {})}, dtype=torch.{buffer.dtype})"
                lines.append(f"{variable(buffer.name)} = {data}.view({tuple_text(buffer.shape)})")
        lines += self._prepare_lines()
        lines.append(f"scratch = _scratch({max(self._scratch_bytes, 1)})")
        lines += self._step_lines()
        lines += [
            write_back_text(self._held_text(key), variable(name), self._plan.buffers[name])
            for key, name in self._plan.write_backs.items()
        ]
        lines.append(f"return {results_text(self._plan, 'leaves')}")
        body = "\n".join(f"    {line}" for line in lines)
        return f"def _forward_{self._index}(leaves, parameters, state):\n{body}"

    def _held_text(self, key: str) -> str:
        return held_text(key, self._slots, "leaves")

    def _prepare_lines(self) -> list[str]:
        """Lines of Python that prepare layouts and values if a parameter has changed since the last call; [] if nothing
        is prepared."""
        if not self.prepares:
            return []
        used = [self._plan.buffers[name] for name in self._prepare_inputs()]
        tensors = tuple_text([f"parameters[{self._slots[buffer.source]}]" for buffer in used])
        slot = f"'prepared{self._suffix}'"
        made = [_print_empty(self._plan.buffers[name]) for name in self._derived]
        sizes = ", ".join([*made, *(f"torch.empty({size}, dtype=torch.float32)" for size in self._prepared.values())])
        pointers = "".join(f"{variable(buffer.name)}.data_ptr(), " for buffer in used)
        workspace = max((self._kernel(position).workspace_bytes for position in self._early), default=0)
        return [
            f"held = state.get({slot})",
            f"if held is None or not held.holds({tensors}, None):  # the weights are new: lay them out again",
            f"    held = _Prepared({tensors}, None, [{sizes}])",
            f"    scratch = _scratch({max(workspace, 1)})",
            f"    _LIBRARY.{self._prepare_name}(",
            f"        _Pointers({pointers}*[part.data_ptr() for part in held.memory], scratch.data_ptr(), {_THREADS})",
            "    )",
            f"    state[{slot}] = held",
            f"{', '.join(map(variable, self._held))}, = held.memory",
        ]

    def _step_lines(self) -> list[str]:
        """Lines of Python that allocate outputs, call segments, and call PyTorch for its steps."""
        lines = [f"{variable(buffer.name)} = {_print_empty(buffer)}" for buffer in find_empty(self._plan)]
        given = ("input", "parameter", "constant", "prepared")
        made = {b.name for b in self._plan.buffers.values() if b.role in given or b.is_in_place}
        segments = {segment.steps[0]: segment for segment in self._segments}
        for position, step in enumerate(self._plan.steps):
            if isinstance(step, TorchCall):
                lines += self._torch_call(step)
                made |= set(step.results)
            elif position in segments and position not in self._early:
                segment = segments[position]
                for name in segment.buffers:
                    if name not in made and name not in self._prepared:
                        lines.append(f"{variable(name)} = {_print_empty(self._plan.buffers[name])}")
                        made.add(name)
                pointers = [f"{name}.data_ptr()" for name in map(variable, segment.buffers)]
                arguments = ", ".join([*pointers, "scratch.data_ptr()", _THREADS])
                lines.append(f"_LIBRARY.{segment.function}(_Pointers({arguments}))")
        return lines

    def _torch_call(self, step: TorchCall) -> list[str]:
        """Lines of Python that call PyTorch for a step and check the tensors that it returns."""
        lines = [call_text(step, {})]
        for name in step.results:
            buffer = self._plan.buffers.get(name)
            if buffer is not None:
                lines.append(f"{variable(name)} = _checked({variable(name)}, {name!r}, {_print_geometry(buffer)})")
        return lines


def _print_team(slot: int) -> str:
    """The C++ statement that takes over PyTorch's number of threads, which belongs to the calling thread."""
    return f"omp_set_num_threads((int)(intptr_t)buffers[{slot}]);"


def _print_geometry(buffer: Buffer) -> str:
    """Python text of a buffer's shape, strides and dtype, as `_checked` takes them."""
    return f"{tuple_text(buffer.shape)}, {tuple_text(buffer.strides)}, torch.{buffer.dtype}"


def _print_empty(buffer: Buffer) -> str:
    """Python text that allocates a buffer's tensor, with its strides."""
    if buffer.strides == contiguous_strides(buffer.shape):
        return f"torch.empty({tuple_text(buffer.shape)}, dtype=torch.{buffer.dtype})"
    return f"torch.empty_strided({tuple_text(buffer.shape)}, {tuple_text(buffer.strides)}, dtype=torch.{buffer.dtype})"


def _half_bits(value: float, dtype: DType) -> str:
    """The bit pattern of a 16-bit float constant, as decimal text."""
    if dtype == "float16":
        return str(struct.unpack("<H", struct.pack("<e", value))[0])
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if value != value:
        return str(0x7FC0)
    return str((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
