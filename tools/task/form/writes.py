"""Inputs that a task's forward writes to. Imports torch; runs the user's code in a worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.opgraph import overlaps


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the first operator that writes to a tensor's memory, and the line of a file that called it."""

    def __init__(self, watched: torch.Tensor, file: str) -> None:
        """Watches the memory of one tensor, for calls from the lines of `file`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = watched.untyped_storage().data_ptr()
        self._file = file
        self.found: tuple[str, int] = "", 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and notes it, with the calling line, if it is the first to write to the watched memory."""
        given = {**dict(zip((item.name for item in func._schema.arguments), args, strict=False)), **(kwargs or {})}
        for argument in func._schema.arguments:
            value = given.get(argument.name)
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and not self.found[0] and self._is_there(value):
                self.found = func._schema.name.removeprefix("aten::"), self._line()
        return func(*args, **(kwargs or {}))

    def _is_there(self, value: Any) -> bool:
        """True if a value is a tensor in the watched memory."""
        return isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == self._place

    def _line(self) -> int:
        """The line of the watched file in the current call stack, or 0."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back  # type: ignore[assignment]
        return frame.f_lineno if frame is not None else 0


def find_write(run: Callable[[], object], tensor: torch.Tensor, file: str) -> tuple[str, int]:
    """(operator, line of `file`) that first writes to the tensor's memory while `run` runs; ("", 0) if none is seen."""
    writes = _Writes(tensor, file)
    with torch.no_grad(), writes:
        run()
    return writes.found


def write_problem(leaves: Sequence[Any], place: int) -> str:
    """The reason why an input may not be written to: another input, or another of its elements, lies there; else ""."""
    written = leaves[place]
    if overlaps(tuple(written.shape), written.stride()):
        return "and several of its elements share memory"
    for other, item in enumerate(leaves):
        if other != place and isinstance(item, torch.Tensor) and _share_memory(written, item):
            return f"which shares memory with input {other}"
    return ""


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the memory from the first to the last element of two tensors meets."""
    if not one.numel() or not other.numel():
        return False
    ends = []
    for item in (one, other):
        last = sum((size - 1) * step for size, step in zip(item.shape, item.stride(), strict=True))
        ends.append((item.data_ptr(), item.data_ptr() + (1 + last) * item.element_size()))
    (begin, end), (start, stop) = ends
    return begin < stop and start < end


def returned_inputs(outputs: Sequence[Any], inputs: Sequence[Any]) -> dict[str, str]:
    """Position of an output -> position of the written input that it is: the same memory, shape and strides."""
    places = {_geometry(item): place for place, item in enumerate(inputs) if _is_written(item)}
    found = ((number, places.get(_geometry(item))) for number, item in enumerate(outputs))
    return {str(number): str(place) for number, place in found if place is not None}


def _is_written(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.numel() > 0 and item._version > 0


def _geometry(item: Any) -> object:
    """(address, shape, strides, dtype) of a tensor; None for another value."""
    return (item.data_ptr(), item.shape, item.stride(), item.dtype) if isinstance(item, torch.Tensor) else None
