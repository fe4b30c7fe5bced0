"""Turns a candidate's exception into one line and an outcome. Runs in the runner."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from foundry.tools.process.torch_device import torch_device_of
from foundry.tools.task.loading import lines_in

MESSAGE_CHARS = 400  # characters of an exception's message
PRINTED_BYTES = 1 << 16  # bytes of the process's output that are searched for compiler errors
_BUILD_FAILED = "Error building extension"  # torch.utils.cpp_extension


class Refused(Exception):
    """The runner cannot carry out a command; `kind` is the Outcome, `line` says why."""

    def __init__(self, kind: str, line: str) -> None:
        """`kind` is the outcome, `line` the evidence."""
        self.kind = kind
        super().__init__(line)


def guarded(kind: str, work: Callable[[], Any], where: str, device: torch.device, *, waits: bool = True) -> Any:
    """Runs foreign code, and if it `waits` its GPU work to the end; turns any exception into a Refused."""
    try:
        result = work()
        if waits:
            torch_device_of(device).synchronise()
        return result
    except Refused:
        raise
    except BaseException as error:  # foreign code may raise anything, SystemExit included
        raise Refused(kind_of(kind, error), one_line(error, where)) from error


def kind_of(kind: str, error: BaseException) -> str:
    """The outcome of an exception: "crash" for lack of memory, "launch_failure" for CUDA errors, else `kind`."""
    text = str(error)
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate" in text:
        return "crash"
    return "launch_failure" if kind == "crash" and ("CUDA" in text or "cuLaunch" in text) else kind


def _printed_errors() -> list[str]:
    """Lines with "error:" at the end of what the process printed; PyTorch prints compilers' errors there
    (`verbose=True`)."""
    try:
        end = os.fstat(1).st_size
        text = os.pread(1, PRINTED_BYTES, max(0, end - PRINTED_BYTES)).decode(errors="replace")
    except OSError:  # output is not kept, or is a pipe
        return []
    return [line.strip() for line in text.splitlines() if "error:" in line]


def one_line(error: BaseException, where: str) -> str:
    """`ValueError: no such shape (line 12)`, with the line of the candidate's own file."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line]
    if not telling and _BUILD_FAILED in text:
        telling = _printed_errors()
    first = (telling or lines or [""])[0]
    passed = lines_in(where, error) if where else []
    line = error.lineno if isinstance(error, SyntaxError) else passed[-1] if passed else None
    place = f" (line {line})" if line else ""
    return f"{type(error).__name__}: {first}"[:MESSAGE_CHARS] + place
