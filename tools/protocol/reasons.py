"""Gates from typed reasons, and the words that people read: the only place where a reason becomes a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from foundry.knowledge.candidate import Gate
from foundry.knowledge.reasons import Reason, ReasonKind

_MOST_NAMED = 4  # in a gate's evidence
_MOST_KEPT = 200  # for decisions; with more of them a gate stays failed
_FUNCTIONS = {  # what a name that is called, or looked up, is
    ReasonKind.VENDOR: "{}, which is a vendor's matrix or network library",
    ReasonKind.TORCH_OPERATOR: "PyTorch's operator {}",
    ReasonKind.TORCH_INTERNAL: "{}, which is an operator of PyTorch beside its dispatcher",
    ReasonKind.PYTHON: "{}, which is the Python interpreter",
    ReasonKind.RUNS_PYTHON: "{}, which runs Python from inside the kernel",
    ReasonKind.SYSTEM: "{}, which is the operating system",
    ReasonKind.THREADS: "{}, which is threads that may outlive the call",
    ReasonKind.DEVICE: "{}, which leaves work or settings behind on the device",
    ReasonKind.UNKNOWN: "{}, which is not known to be harmless",
}
_OTHERS = {
    ReasonKind.LINKED: "the library links {}",
    ReasonKind.LOADED: "loads {}, which is not the candidate's own",
    ReasonKind.MAPPED: "{} became part of the process, which is not the candidate's own",
    ReasonKind.WRITTEN: "wrote {} itself; code must come from source that can be read",
    ReasonKind.UNNAMED_CODE: "{}",
    ReasonKind.ASKS_NOTHING: "asks for no function of any other library, as every compiler's library does",
    ReasonKind.UNREADABLE: "the built library cannot be read: {}",
    ReasonKind.MORE: "{} more, which were not kept",
}


def in_words(reason: Reason, verb: str = "calls") -> str:
    """One reason as a clause; `verb` is what is done with the function that it is about."""
    where = f"line {reason.line}: " if reason.line else ""
    what = f"{verb} {_FUNCTIONS[reason.kind]}" if reason.kind in _FUNCTIONS else _OTHERS[reason.kind]
    return where + what.format(reason.subject)


def judged(name: str, reasons: Sequence[Reason], good: str) -> Gate:
    """A gate that fails for every reason there is, and passes with the words `good` without any."""
    if not reasons:
        return Gate(name, True, good)
    kept = tuple(reasons[:_MOST_KEPT])
    if len(reasons) > len(kept):
        kept += (Reason(ReasonKind.MORE, str(len(reasons) - len(kept))),)
    return Gate(name, False, evidence_of(reasons), kept)


def evidence_of(reasons: Sequence[Reason]) -> str:
    """The first reasons in words, those first that no other rule may excuse, and how many others there are."""
    gravest = sorted(reasons, key=lambda reason: reason.kind == ReasonKind.TORCH_OPERATOR)
    more = f"; and {len(reasons) - _MOST_NAMED} more" if len(reasons) > _MOST_NAMED else ""
    return "; ".join(map(in_words, gravest[:_MOST_NAMED])) + more
