"""One question and its answer. Lives in the judge (imports torch)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from foundry.knowledge.opgraph import TensorSpec, contiguous_strides
from foundry.tools.grade.questions.freedom.reruns import Reruns
from foundry.tools.protocol.comparison import Expected, scale_only
from foundry.tools.protocol.rules import Distribution, OutputError
from foundry.tools.task import loading
from foundry.tools.task.bundle import Parcel

Errors = list[OutputError]  # of each output


@dataclass(frozen=True)
class Trial:
    """One hidden question and its answer: inputs of a distribution, the truth, and PyTorch's own error on them.

    `ieee` and `tf32` are PyTorch's errors without and with TF32; `tf32` is None on a CPU. `specs` are shapes and dtypes
    of the outputs, contiguous. `buffers` are the parameters and buffers that forward updates (running statistics), as
    they are after the call. `exact`: which outputs PyTorch does not round, as in a sort; then nobody needs to.
    `luck` gives the largest errors of PyTorch on other inputs of the distribution, with TF32 or without: where few
    elements make an output or an error, one draw may be right by luck. `unstable` gives those on these inputs, changed
    by one unit in the last place. `is_wider`: which truths are of a wider type than PyTorch's answer; the others hold
    its roundings. `reruns` are other answers of PyTorch that are as right.
    """

    distribution: Distribution
    seed: int
    inputs: Parcel
    expected: list[Expected]
    ieee: list[OutputError]
    tf32: list[OutputError] | None
    specs: list[TensorSpec]
    note: str = ""
    buffers: tuple[UpdatedBuffer, ...] = ()
    exact: tuple[bool, ...] = ()
    luck: Callable[[bool], list[OutputError]] = lambda _: []
    unstable: Callable[[], list[OutputError]] = list
    is_wider: tuple[bool, ...] = ()
    reruns: Reruns = field(default_factory=Reruns)

    @property
    def of_baseline(self) -> list[OutputError]:
        """PyTorch's errors with the arithmetic that the baseline uses: TF32 where it is allowed."""
        return self.tf32 or self.ieee

    def outline(self) -> Trial:
        """The same without its tensors, and without what would ask its case again: shapes and PyTorch's errors."""
        buffers = tuple(replace(buffer, expected=scale_only(buffer.expected)) for buffer in self.buffers)
        bare = replace(self, inputs=Parcel({"tree": [], "specs": []}), expected=[], buffers=buffers)
        return replace(bare, luck=lambda _: [], unstable=list)


@dataclass(frozen=True)
class UpdatedBuffer:
    """One tensor of the model that forward updates: what it must be after the call, and PyTorch's own errors.

    `share` is the norm of what this call computed over the norm of the buffer; 1 where it is not known.
    """

    name: str
    expected: Expected
    ieee: OutputError
    tf32: OutputError
    spec: TensorSpec
    share: float = 1.0


@dataclass
class Packed:
    """A model's state as runners get it: its keys in order, and the tensors."""

    keys: list[str]
    parcel: Parcel
    mutable: list[int] = field(default_factory=list)


def contiguous_spec(tensor: torch.Tensor) -> TensorSpec:
    """Of an output that lies row by row."""
    shape = tuple(int(size) for size in tensor.shape)
    return TensorSpec(shape, contiguous_strides(shape), loading.dtype_name(tensor.dtype))


def usual_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Of an output as PyTorch gives it; row by row where it repeats elements."""
    return contiguous_spec(tensor).strides if 0 in tensor.stride() else tensor.stride()
