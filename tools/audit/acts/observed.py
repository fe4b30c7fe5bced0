"""The observations of a candidate's process, as its runner reports them. Free of torch."""

from __future__ import annotations

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from foundry.tools.process.messages import Facts, Items, Line

Launch = tuple[str, float, int, int]  # a kernel's name, microseconds, blocks, and threads a block
Event = tuple[str, str, str, int]  # an interpreter's event: phase, name, what it is about, line of the candidate


class OperatorRow(TypedDict):
    """PyTorch's calls of one operator in a forward, as its dispatcher saw them."""

    op: Line
    calls: NonNegativeInt
    flops: NonNegativeInt
    bytes: NonNegativeInt


class UnfinishedOutputs(TypedDict):
    """Numbers of outputs that changed after the call. `held`: the device was held until they were copied."""

    changed: Items[int]
    held: bool


class Observations(TypedDict, total=False):
    """Acts since loading, calls of a steady forward, and PyTorch's operators in it."""

    events: Items[Event]
    libraries: Items[str]  # paths of libraries that were loaded
    kept: Facts[str]  # copies of libraries that may be gone, by the path of the original
    tritons: Items[str]  # paths of libraries that Triton built for itself
    unnamed: Facts[int]  # bytes of code without a file, by phase
    printed: Line  # output of functions that run when the process ends
    arithmetic: Facts[str]
    calls: Items[tuple[str, int, float]]  # function, line, share of the processor time
    operators: Items[OperatorRow]
    prepared_by: Items[str]  # operators of the first call
    beside: Items[Line]  # operators that the dispatcher did not see
    torch_time: float  # share of a call's time in PyTorch's operators
    longest: Items[tuple[Line, float]]  # names of these, and their shares of that time
    unfinished: UnfinishedOutputs
    kernels: Items[Launch]
