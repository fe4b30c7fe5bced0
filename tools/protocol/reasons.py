"""Makes gates from typed reasons. The only place at which a reason becomes a sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

from foundry.knowledge.candidate import Gate
from foundry.knowledge.reasons import Reason, ReasonKind

_MOST_NAMED = 4  # reasons named in a gate's evidence
_MOST_KEPT = 200  # reasons kept as data; a gate with more of them can no longer be excused
_FUNCTIONS = {  # sentence parts about a function that is called or looked up
    ReasonKind.VENDOR: "{}, which belongs to a vendor's matrix or network library",
    ReasonKind.TORCH_OPERATOR: "PyTorch's operator {}",
    ReasonKind.TORCH_INTERNAL: "{}, which runs an operator of PyTorch unseen by its dispatcher",
    ReasonKind.PYTHON: "{}, which belongs to the Python interpreter",
    ReasonKind.RUNS_PYTHON: "{}, which runs Python from inside the kernel",
    ReasonKind.SYSTEM: "{}, which asks the operating system",
    ReasonKind.THREADS: "{}, which starts threads that may outlive the call",
    ReasonKind.DEVICE: "{}, which leaves work or settings behind on the device",
    ReasonKind.UNKNOWN: "{}, which is not known to be harmless",
}
_OTHERS = {
    ReasonKind.LINKED: "the library links {}",
    ReasonKind.LOADED: "loads {}, a library that the candidate did not build",
    ReasonKind.MAPPED: "the process mapped {}, a library that the candidate did not build",
    ReasonKind.WRITTEN: "wrote the library {} itself; code must be compiled from source that can be read",
    ReasonKind.UNNAMED_CODE: "{}",
    ReasonKind.ASKS_NOTHING: "imports no function of any other library, unlike every compiler's output",
    ReasonKind.UNREADABLE: "the built library cannot be read: {}",
    ReasonKind.NOT_READABLE: "{}",
    ReasonKind.COMPILER: "asks for the compiler {!r}; g++, clang++ and nvcc are known here",
    ReasonKind.FLAG: "passes {!r} to the compiler, which does more than optimise",
    ReasonKind.RELAXED: "uses {}, whose arithmetic is not IEEE's",
    ReasonKind.TAKES_NAME: "defines {}, a name of the CUDA runtime: whose function is called could not be told",
    ReasonKind.RACES: "its kernels let the next one begin early (griddepcontrol.launch_dependents) and none waits for "
    "the one before it (griddepcontrol.wait), which alone makes that one's results visible: wait before the first read",
    ReasonKind.FLUSHES: "loading it sets flush-to-zero for the whole thread: other code loses its denormal numbers. "
    "GCC before 13 links this in where -ffast-math or -Ofast stands in the command that links",
    ReasonKind.LAYOUT: "it reads inputs with other strides (a transposed tensor) as if they had the task's, and is "
    "silently wrong: pass it none, or let it follow strides, copy (x.contiguous()) or raise an exception",
    ReasonKind.MODE: "after model.{} it gives silently other answers than PyTorch: compute that mode too, leave it to "
    "Model.forward, or raise an exception where self.training is not what it was made for",
    ReasonKind.PRIES: "{}",
    ReasonKind.CONDUCT: "{}",
    ReasonKind.WRONG: "{}",
    ReasonKind.UNDECIDED: "{}",
    ReasonKind.MORE: "{} more that are not listed",
}


def in_words(reason: Reason, verb: str = "calls") -> str:
    """One reason as a clause; `verb` is the candidate's use of the function ("calls", "looks up")."""
    where = f"line {reason.line}: " if reason.line else ""
    what = f"{verb} {_FUNCTIONS[reason.kind]}" if reason.kind in _FUNCTIONS else _OTHERS[reason.kind]
    return where + what.format(reason.subject)


def make_gate(name: str, reasons: Sequence[Reason], good: str) -> Gate:
    """A gate that fails if there is any reason against the candidate, and passes with the evidence `good` otherwise."""
    if not reasons:
        return Gate(name, True, good)
    kept = tuple(reasons[:_MOST_KEPT])
    if len(reasons) > len(kept):
        kept += (Reason(ReasonKind.MORE, str(len(reasons) - len(kept))),)
    return Gate(name, False, evidence_of(reasons), kept)


def evidence_of(reasons: Sequence[Reason]) -> str:
    """The gravest reasons in words, and how many more there are. Reasons that another rule may excuse come last."""
    gravest = sorted(reasons, key=lambda reason: reason.kind == ReasonKind.TORCH_OPERATOR)
    more = f"; and {len(reasons) - _MOST_NAMED} more" if len(reasons) > _MOST_NAMED else ""
    return "; ".join(map(in_words, gravest[:_MOST_NAMED])) + more
