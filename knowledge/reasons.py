"""Why a gate fails, as data. Later decisions are made on these reasons, never on the sentence that people read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonKind(StrEnum):
    """The kinds of facts that speak against a candidate. In brackets: what `Reason.subject` holds."""

    VENDOR = "vendor"  # a vendor's matrix or network library is called (symbol)
    TORCH_OPERATOR = "torch_operator"  # an operator of PyTorch, through its dispatcher (operator)
    TORCH_INTERNAL = "torch_internal"  # PyTorch, where its dispatcher does not see it (symbol)
    PYTHON = "python"  # the Python interpreter (symbol)
    RUNS_PYTHON = "runs_python"  # Python code is run from inside the kernel (symbol)
    SYSTEM = "system"  # the operating system (symbol)
    THREADS = "threads"  # threads that may outlive the call (symbol)
    DEVICE = "device"  # work or settings stay behind on the device (symbol)
    RACES = "races"  # a kernel may begin before the one whose results it reads has written them (subject: "")
    FLUSHES = "flushes"  # denormal numbers become zero in the whole thread that loads the file (subject: "")
    LAYOUT = "layout"  # inputs with other strides are read as if they lay as the task's own do (subject: "")
    MODE = "mode"  # in the other of train() and eval() it is not the task's model ("train()" or "eval()")
    UNKNOWN = "unknown"  # not known to be harmless (symbol)
    LINKED = "linked"  # another library is linked (name)
    LOADED = "loaded"  # another library is loaded (path)
    MAPPED = "mapped"  # another library became part of the process (path)
    WRITTEN = "written"  # a library that the candidate wrote itself was loaded (path)
    UNNAMED_CODE = "unnamed_code"  # code without a file (bytes and when)
    ASKS_NOTHING = "asks_nothing"  # a library has no imports, so that what it does is not known
    UNREADABLE = "unreadable"  # a library cannot be read (why)
    NOT_READABLE = "not_readable"  # the candidate's file cannot be read (why)
    COMPILER = "compiler"  # the file asks for another compiler (name)
    FLAG = "flag"  # a compiler's flag does more than optimise (flag)
    RELAXED = "relaxed"  # arithmetic that the policy refuses (flag or function)
    TAKES_NAME = "takes_name"  # native code defines a name of the CUDA runtime (name)
    MORE = "more"  # so many others that they were not kept (how many)


@dataclass(frozen=True)
class Reason:
    """One fact that speaks against a candidate, at a line of its file or at none (0)."""

    kind: ReasonKind
    subject: str
    line: int = 0
