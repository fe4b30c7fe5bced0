"""An author's kernel in CUDA: its launches are a table of records."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import AuthoredLaunch
from foundry.knowledge.compiler.authored.expressions import evaluate
from foundry.knowledge.compiler.authored.printing import Page
from foundry.knowledge.compiler.cuda.launches import (
    KERNEL_PREFIX,
    Launch,
    encode,
    max_shared_bytes,
    prepared_argument,
    workspace_argument,
)
from foundry.knowledge.compiler.ir.kernels import PrintedKernel
from foundry.knowledge.errors import CannotLower


@dataclass
class CudaPage(Page):
    """The parts of a step that is launched through the driver."""

    index_type = "long long"

    def with_prepared(self, printed: PrintedKernel) -> PrintedKernel:
        """The printed kernel with the bytes of its prepared buffers."""
        return replace(printed, prepared_bytes=self.prepared_bytes)

    def named(self, code: str) -> str:
        """The code with each launched function renamed to its symbol in the module."""
        for launch in {launch.function: launch for launch in self.kernel.launches}.values():
            code = re.sub(rf"\b{launch.function}\b", self._symbol(launch), code)
        return code

    def _symbol(self, launch: AuthoredLaunch) -> str:
        """A kernel's name in the cubin: those of the kernel compiler begin in the same way."""
        return launch.function if launch.function.startswith(KERNEL_PREFIX) else KERNEL_PREFIX + launch.function

    def call(self) -> str:
        """All launches as encoded records."""
        return encode(self._launch(launch) for launch in self.kernel.launches)

    def _launch(self, launch: AuthoredLaunch) -> Launch:
        """The launch with all numbers worked out. Raises CannotLower if the grid, the block or shared memory exceeds
        the GPU."""
        grid, block = self._three(launch.grid, "grid", launch), self._three(launch.block, "block", launch)
        shared = evaluate(launch.shared_bytes, self.numbers)
        if block[0] * block[1] * block[2] > 1024 or grid[0] >= 2**31 or max(grid[1:]) > 65535:
            raise CannotLower(f"{launch.function}: grid {grid}, block {block} is beyond what a GPU starts")
        if not 0 <= shared <= max_shared_bytes(self.device.arch):
            most = max_shared_bytes(self.device.arch)
            raise CannotLower(f"{launch.function}: {shared} bytes of shared memory, a block may have {most}")
        args = tuple(self._gpu_argument(arg) for arg in launch.args)
        return Launch(self._symbol(launch), grid, block, args, shared_bytes=shared, prepares=launch.once)

    def _three(self, texts: tuple[str, ...], what: str, launch: AuthoredLaunch) -> tuple[int, int, int]:
        """Three positive sizes from one to three expressions, missing ones 1. Raises CannotLower."""
        if not 1 <= len(texts) <= 3:
            raise CannotLower(f"{launch.function}: {what} needs one to three expressions")
        x, y, z = [*(evaluate(text, self.numbers) for text in texts), 1, 1][:3]
        if min(x, y, z) < 1:
            raise CannotLower(f"{launch.function}: {what} is {(x, y, z)}")
        return x, y, z

    def _gpu_argument(self, arg: str) -> str | int:
        """A launch's argument: a buffer's name, a place in the workspace or the prepared memory, or a number."""
        if arg in self.plan.buffers:
            return arg
        if arg in self.places:
            return (
                prepared_argument(self.places[arg])
                if arg in self.prepared_sizes
                else workspace_argument(self.places[arg])
            )
        return evaluate(arg, self.numbers)
