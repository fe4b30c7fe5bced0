"""An author's kernel in C++: its launches are calls of functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foundry.knowledge.candidate import AuthoredLaunch
from foundry.knowledge.compiler.authored.expressions import evaluate
from foundry.knowledge.compiler.authored.printing import NAMESPACE, Page
from foundry.knowledge.compiler.ir.kernels import PrintedKernel
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT


@dataclass
class CpuPage(Page):
    """The parts of a step that is called."""

    index_type = "long"

    def with_prepared(self, printed: PrintedKernel) -> PrintedKernel:
        """The printed kernel with the code that prepares its buffers, and their sizes."""
        return replace(printed, prepare=self._prepare(), prepared_sizes=self.prepared_sizes)

    def call(self) -> str:
        """The C++ calls of all launches but those that are made once, a line each."""
        return "\n".join(self._call(launch) for launch in self.kernel.launches if not launch.once)

    def _prepare(self) -> dict[str, str]:
        """The calls that fill what is kept, filed under the first of it."""
        calls = [self._call(launch) for launch in self.kernel.launches if launch.once]
        return {next(iter(self.prepared_sizes)): "\n".join(calls)} if calls and self.prepared_sizes else {}

    def _call(self, launch: AuthoredLaunch) -> str:
        """The C++ call of one launch's function."""
        return f"{NAMESPACE}::{launch.function}({', '.join(self._cpu_argument(arg) for arg in launch.args)});"

    def _cpu_argument(self, arg: str) -> str:
        """The C++ text of a call's argument: a buffer, a place in the scratch memory, or a number."""
        if arg in self.plan.buffers:
            return f"b_{arg}"
        if arg in self.places:
            dtype = next(part.dtype for part in self.kernel.scratch if part.name == arg)
            kind = CPU_DIALECT.storage[dtype]  # type: ignore[index]
            return f"({kind}*)b_{arg}" if arg in self.prepared_sizes else f"({kind}*)(workspace + {self.places[arg]})"
        return str(evaluate(arg, self.numbers))
