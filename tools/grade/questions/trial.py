"""One question and its answer. Lives in the judge (imports torch)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from foundry.knowledge.opgraph import TensorSpec, contiguous_strides
from foundry.tools.grade.questions.freedom.reruns import Reruns
from foundry.tools.process.messages import Packing
from foundry.tools.protocol.comparison import Expected, scale_only
from foundry.tools.protocol.rules import Distribution, OutputError
from foundry.tools.task import loading
from foundry.tools.task.bundle import Parcel

Errors = list[OutputError]  # one for each output


@dataclass(frozen=True)
class Trial:
    """One hidden question and its answer: inputs of a distribution, the truth, and PyTorch's own error on them.

    - `ieee`, `tf32`: PyTorch's errors without and with TF32; `tf32` is None on a CPU.
    - `specs`: shapes and dtypes of the outputs, contiguous.
    - `buffers`: parameters and buffers that forward updates (running statistics), as they are after the call.
    - `exact`: for each output, PyTorch rounds nothing (as in a sort), so that a kernel must not either.
    - `luck`: gives PyTorch's largest errors on other inputs of the distribution, with TF32 or without. If few elements
      make an output or an error, one draw may be right by luck.
    - `unstable`: gives PyTorch's largest errors on these inputs changed by one unit in the last place.
    - `is_wider`: for each output, the truth's dtype is wider than PyTorch's answer; other truths hold its roundings.
    - `reruns`: other answers of PyTorch that are as right.
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
        """PyTorch's errors in the baseline's arithmetic: with TF32 if that is allowed."""
        return self.tf32 or self.ieee

    def name_of(self, index: int) -> str:
        """An output in words; the last ones are inputs that forward writes to."""
        writes = self.inputs.writes
        results = len(self.specs) - len(writes)
        return f"output {index}" if index < results else f"input {writes[index - results]} after the call"

    def outline(self) -> Trial:
        """The trial without its tensors and without functions that would run its case again: shapes and PyTorch's
        errors."""
        buffers = tuple(replace(buffer, expected=scale_only(buffer.expected)) for buffer in self.buffers)
        bare = replace(self, inputs=Parcel(Packing(tree=[], specs=[])), expected=[], buffers=buffers)
        return replace(bare, luck=lambda _: [], unstable=list, reruns=Reruns())


@dataclass(frozen=True)
class UpdatedBuffer:
    """One tensor of the model that forward updates: its expected value after the call, and PyTorch's own errors.

    `share` is the norm of what this call computed over the norm of the buffer; 1 if it is unknown.
    """

    name: str
    expected: Expected
    ieee: OutputError
    tf32: OutputError
    spec: TensorSpec
    share: float = 1.0


@dataclass
class Packed:
    """A model's state for runners: its keys in order, and the tensors."""

    keys: list[str]
    parcel: Parcel
    mutable: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class StatePart:
    """Some tensors of a model's state, or some rows of them: [number in the state, first row, row behind the last]."""

    pieces: list[tuple[int, int, int]]
    parcel: Parcel


def contiguous_spec(tensor: torch.Tensor) -> TensorSpec:
    """The spec of an output, as if it were contiguous."""
    shape = tuple(int(size) for size in tensor.shape)
    return TensorSpec(shape, contiguous_strides(shape), loading.dtype_name(tensor.dtype))


def usual_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of PyTorch's output; contiguous ones if it repeats elements."""
    return contiguous_spec(tensor).strides if 0 in tensor.stride() else tensor.stride()
