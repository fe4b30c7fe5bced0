"""Finds the line of a task that writes to one of its inputs. Imports torch; runs the user's code in a worker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the first operator that writes to a tensor's memory, and the line of a file that called it."""

    def __init__(self, watched: torch.Tensor, file: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = watched.untyped_storage().data_ptr()
        self._file = file
        self.found: tuple[str, int] = "", 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
