"""Rows too long for any chip, read twice in one launch: a row's second reading follows its first so closely that L2
still holds it."""

from __future__ import annotations

from foundry.knowledge.compiler.cuda.launches import Launch, Workspace
from foundry.knowledge.compiler.cuda.rows.row_shape import RowShape
from foundry.knowledge.compiler.cuda.rows.row_text import RowText, part_pointer
from foundry.knowledge.compiler.cuda.rows.steps import EmitPass, ReducePass
from foundry.knowledge.compiler.cuda.space import indent, signature_of
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import EmitRow, Let, Plan, RowKernel
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.passes import stores_in, value_of


class PacedRow:
    """Prints a row kernel of one reduction as one launch (and one that clears counters). Its blocks reduce parts of a
    row, or wait for an earlier row and store its results."""

    def __init__(self, kernel: RowKernel, plan: Plan, shape: RowShape, name: str) -> None:
        self.kernel, self.plan, self.shape, self.name = kernel, plan, shape, name
        unit = shape.team * shape.vector
        self.chunk = -(-shape.length // (shape.splits * unit)) * unit
        (self.reduction,) = (step for step in shape.steps if isinstance(step, ReducePass))
        self.memory = Workspace()
        self.memory.reserve("counters", 4 * (shape.rows + 1))
        for item in self.reduction.accumulators:
            self.memory.reserve(item.name, shape.rows * shape.splits * item.state_bytes)

    def print(self) -> tuple[str, list[Launch], int]:
        """(CUDA text, launches, bytes of scratch memory): one launch clears counters, one reduces parts of rows. Later
        blocks wait for an earlier row's counter and store its results."""
        shape = self.shape
        text = RowText(shape, self.plan)
        position = [*text.locate_row("paced_row"), *text.bound_part("split", self.chunk)]
        at = shape.steps.index(self.reduction)
        lets = [line for step in shape.steps[:at] if isinstance(step, Let) for line in text.define_let(step)]
        first = [*text.declare_states(self.reduction), *text.loop_over_row(self.reduction, "begin", "end")]
        signal = ("__threadfence();", "atomicAdd(&paced[1 + row], 1u);")
        first += text.combine(self.reduction)
        first += text.keep_states(
            self.reduction, lambda name: f"{part_pointer(name)}[row * {shape.splits} + split]", *signal
        )
        found = leaves(map(value_of, self.kernel.stages))
        signature, arguments = signature_of(self.plan, found, stores_in(self.kernel.stages))
        states = [f"{i.state}* {part_pointer(i.name)}" for i in self.reduction.accumulators]
        values: dict[str, object] = {
            "NAME": self.name,
            "THREADS": shape.threads,
            "PARAMETERS": ", ".join([signature, *states, "unsigned* paced"]),
            "WORDS": shape.rows + 1,
            "SPLITS": shape.splits,
            "LAG": self.lag,
            "ROWS": shape.rows,
            "POSITION": indent([*position, *lets]),
            "FIRST": indent(first, 2),
            "SECOND": indent(self._second(text, at), 2),
        }
        source = fill(read_library_text("cuda/rows/paced.cu"), values)
        places = [self.memory.argument(item.name) for item in self.reduction.accumulators]
        counters = self.memory.argument("counters")
        blocks = (2 * shape.rows + self.lag) * shape.splits
        made = [
            Launch(f"{self.name}_clear", (-(-(shape.rows + 1) // 256), 1, 1), (256, 1, 1), (counters,)),
            Launch(self.name, (blocks, 1, 1), (shape.threads, 1, 1), (*arguments, *places, counters)),
        ]
        return source, made, self.memory.bytes

    @property
    def lag(self) -> int:
        """Number of rows between the first and the second reading: as many as the blocks that run at a time."""
        return max(1, min(self.shape.rows, round(self.shape.resident / (2 * self.shape.splits))))

    def _second(self, text: RowText, at: int) -> list[str]:
        """Statements of the second reading: merge the row's parts, compute the values after them and store. `at` is the
        number of the reduction's step."""
        shape = self.shape
        fresh = f"paced_rows::fresh({{}} + row * {shape.splits} + i)"
        lines = text.merge_parts(self.reduction, shape.splits, lambda name: fresh.format(part_pointer(name)))
        for step in shape.steps[at + 1 :]:
            if isinstance(step, Let):
                lines += text.define_let(step)
            elif isinstance(step, EmitPass):
                lines += text.loop_over_row(step, "begin", "end")
            elif isinstance(step, EmitRow):
                lines += text.emit_row(step, "split == 0 && lane == 0")
        return lines
