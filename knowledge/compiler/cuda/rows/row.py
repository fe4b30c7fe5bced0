"""Row and column kernels in CUDA: reductions, softmax, normalisations, losses.

A team of threads shares a row: part of a warp, a warp, or a block. The row is read once and waits in registers or
shared memory between its passes, or is streamed again when it fits neither. Rows that are few and long are split over
several blocks, which costs one launch more for each reduction that another one needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.launches import Launch, Workspace, symbol_of
from foundry.knowledge.compiler.cuda.rows.paced import PacedRow
from foundry.knowledge.compiler.cuda.rows.row_shape import Chooser, RowShape
from foundry.knowledge.compiler.cuda.rows.row_text import RowText, part_pointer
from foundry.knowledge.compiler.cuda.rows.steps import EmitPass, ReducePass, Step
from foundry.knowledge.compiler.cuda.rows.streamed import StreamedRow
from foundry.knowledge.compiler.cuda.space import indent, signature_of
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import EmitRow, Let, Plan, PrintedKernel, RowKernel
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.passes import stores_in, value_of
from foundry.knowledge.device import Device

_KERNEL = """\
extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters}) {{
{body}
}}
"""


def print_row(kernel: RowKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a RowKernel. Raises CannotLower for 2^31 rows or elements in a row, and if nothing moves along the
    reduced dimensions.

    `choices` may hold:
    - "softmax": "online" takes maximum and sum in one pass with rescaling, "two_pass" in two
    - "vector": elements of one memory access (1, 2, 4, 8)
    - "team": threads that share a row
    - "threads": threads of a block (rows that are contiguous in memory)
    - "columns": neighbouring rows of a block (rows across memory)
    - "staging": where a row waits between two passes: "registers", "shared", or "stream" (read again)
    - "splits": blocks that share a row
    - "in_flight": vectors that a thread loads before it uses the first, where the row is read again
    - "order": order of reading split rows. "launches": one launch for each reading; "behind": one launch, in which the
      second reading follows the first; "memory": all parts of all rows in the order of memory
    - "part": vectors of a thread in such a part
    - "cluster": blocks that hold a row together, and read it once
    A value that is not legal for this kernel gives way to the default."""
    chooser = Chooser(kernel, plan, device, choices)
    shape = chooser.shape()
    name = symbol_of(kernel)
    form = _form(shape)
    printer = form(kernel, plan, shape, name)
    functions, launches, workspace_bytes = printer.print()
    chosen = {item.name: _choice_used(shape, item.name, kernel, choices) for item in chooser.tuning.tunables}
    return PrintedKernel(
        functions=functions,
        call=cuda_launch.encode(launches),
        template="column" if shape.column else "row",
        choices=chosen,
        tunables=tuple(chooser.tuning.tunables),
        workspace_bytes=workspace_bytes,
        launches=len(launches),
        shared=_shared_texts(shape),
    )


def _form(shape: RowShape) -> type[PacedRow | StreamedRow | _SplitRow | _WholeRow]:
    """The printer class for a shape."""
    if shape.order == "behind":
        return PacedRow
    if shape.order == "memory":
        return StreamedRow
    return _SplitRow if shape.splits > 1 else _WholeRow


def _shared_texts(shape: RowShape) -> tuple[str, ...]:
    """The library texts that kernels of this shape need."""
    if shape.order == "behind":
        return (read_library_text("cuda/rows/paced.cuh"),)
    return (read_library_text("cuda/rows/cluster.cuh"),) if shape.cluster > 1 else ()


def _choice_used(shape: RowShape, name: str, kernel: RowKernel, choices: dict[str, Choice]) -> Choice:
    """The value of a tunable that the shape uses. It differs from the one in `choices` if that does not fit."""
    if name == "softmax":
        online = any(
            isinstance(step, ReducePass)
            and any(len(item.defines) == 2 and item.state.startswith("Softmax") for item in step.accumulators)
            for step in shape.steps
        )
        return "online" if online else "two_pass"
    values: dict[str, Choice] = {
        "vector": shape.vector,
        "team": shape.team,
        "threads": shape.threads,
        "columns": shape.rows_per_block,
        "staging": shape.staging,
        "splits": shape.splits,
        "cluster": shape.cluster,
        "order": shape.order,
        "part": shape.part,
        "in_flight": shape.in_flight,
    }
    return values[name]


class _WholeRow:
    """Prints a row kernel as one launch, whose blocks or clusters see whole rows."""

    def __init__(self, kernel: RowKernel, plan: Plan, shape: RowShape, name: str) -> None:
        self.kernel = kernel
        self.plan = plan
        self.shape = shape
        self.name = name

    def print(self) -> tuple[str, list[Launch], int]:
        """(CUDA text, launches, 0 bytes of scratch memory)."""
        text = RowText(self.shape, self.plan)
        first = self.shape.steps[0] if self.shape.cluster > 1 else None
        begun = first if isinstance(first, ReducePass) else None
        lines = [*text.locate_row(), *text.stage_row(begun)]
        last = max((i for i, step in enumerate(self.shape.steps) if isinstance(step, ReducePass)), default=-1)
        for number, step in enumerate(self.shape.steps):
            lines += text.print_step(step, begun=step is begun)
            if self.shape.cluster > 1 and number == last:  # a block must stay while others read its state
                lines.append("cluster::arrive();")
        if self.shape.cluster > 1 and last >= 0:
            lines.append("cluster::wait();")
        found = leaves(map(value_of, self.kernel.stages))
        signature, arguments = signature_of(self.plan, found, stores_in(self.kernel.stages))
        source = _KERNEL.format(threads=self.shape.threads, name=self.name, parameters=signature, body=indent(lines))
        grid = (self.shape.blocks * self.shape.cluster, 1, 1)
        made = Launch(
            self.name,
            grid,
            block_of(self.shape),
            tuple(arguments),
            text.shared_bytes(),
            cluster=self.shape.cluster,
        )
        return source, [made], 0


def block_of(shape: RowShape) -> tuple[int, int, int]:
    """The block of a launch, (x, y, z) in threads: rows by team for rows across memory."""
    return (shape.rows_per_block, shape.team, 1) if shape.column else (shape.threads, 1, 1)


class _SplitRow:
    """Prints a row kernel with several blocks for each row: each reduction pass writes partial states, the next launch
    combines them.

    Partials are combined in a fixed order, so the result does not depend on which block came first."""

    def __init__(self, kernel: RowKernel, plan: Plan, shape: RowShape, name: str) -> None:
        self.kernel = kernel
        self.plan = plan
        self.shape = shape
        self.name = name
        unit = shape.team * shape.vector
        self.chunk = -(-shape.length // (shape.splits * unit)) * unit
        self.memory = Workspace()
        for step in shape.steps:
            for item in step.accumulators if isinstance(step, ReducePass) else ():
                self.memory.reserve(item.name, shape.rows * shape.splits * item.state_bytes)

    def print(self) -> tuple[str, list[Launch], int]:
        """(CUDA text, launches, bytes of scratch memory): one launch for each reduction pass, and one that stores."""
        sources: list[str] = []
        launches: list[Launch] = []
        reductions = [i for i, step in enumerate(self.shape.steps) if isinstance(step, ReducePass)]
        for phase, at in enumerate(reductions):
            source, launch = self._phase(f"{self.name}_part{phase}", self.shape.steps[:at], self.shape.steps[at])
            sources.append(source)
            launches.append(launch)
        source, launch = self._phase(self.name, self.shape.steps, None)
        return "\n".join([*sources, source]), [*launches, launch], self.memory.bytes

    def _phase(self, name: str, before: Sequence[Step], reduce: Step | None) -> tuple[str, Launch]:
        """(CUDA text, launch) that recovers the results of earlier reductions in `before`, then reduces parts of rows
        by `reduce`, or stores if that is None."""
        text = RowText(self.shape, self.plan)
        lines = [*text.locate_row(), f"const int split = (int)(blockIdx.x % {self.shape.splits});"]
        lines += text.bound_part("split", self.chunk)
        for step in before:
            if isinstance(step, ReducePass):
                lines += text.merge_parts(step, self.shape.splits, lambda name: self._place(name, "i"))
            elif isinstance(step, Let):
                lines += text.define_let(step)
            elif reduce is None and isinstance(step, EmitPass):
                lines += text.loop_over_row(step, "begin", "end")
            elif reduce is None and isinstance(step, EmitRow):
                lines += text.emit_row(step, "split == 0 && lane == 0")
        if isinstance(reduce, ReducePass):
            lines += [*text.declare_states(reduce), *text.loop_over_row(reduce, "begin", "end"), *text.combine(reduce)]
            lines += text.keep_states(reduce, lambda name: self._place(name, "split"))
        stages = [s.value for s in before if isinstance(s, Let)]
        for step in [*before, *([reduce] if reduce else [])]:
            stores = isinstance(step, EmitPass | EmitRow) and reduce is None
            if isinstance(step, EmitRow) and stores:
                stages.append(step.store.value)
            elif (isinstance(step, EmitPass) and stores) or (isinstance(step, ReducePass) and step is reduce):
                stages += step.values
        written = stores_in(self.kernel.stages) if reduce is None else []
        signature, arguments = signature_of(self.plan, leaves(stages), written)
        states = self._states(before, reduce)
        signature = ", ".join([part for part in (signature, *(p for p, _ in states)) if part])
        source = _KERNEL.format(threads=self.shape.threads, name=name, parameters=signature, body=indent(lines))
        grid = (self.shape.blocks * self.shape.splits, 1, 1)
        args = (*arguments, *(argument for _, argument in states))
        return source, Launch(name, grid, block_of(self.shape), args)

    def _states(self, before: Sequence[Step], reduce: Step | None) -> list[tuple[str, str]]:
        """(C parameter, launch argument) of each partial state that a phase reads, or writes if it is of `reduce`."""
        found = []
        for step in [*before, *([reduce] if reduce else [])]:
            for item in step.accumulators if isinstance(step, ReducePass) else ():
                const = "" if step is reduce else "const "
                name = part_pointer(item.name)
                found.append((f"{const}{item.state}* __restrict__ {name}", self.memory.argument(item.name)))
        return found

    def _place(self, name: str, part: str) -> str:
        """C text of a reduction's partial state of a row's part."""
        return f"{part_pointer(name)}[row * {self.shape.splits} + {part}]"
