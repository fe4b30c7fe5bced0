"""Reasons for a gate's failure, as data, and the refusal that each proves.

Later decisions are made on these reasons, never on the sentence that people read. "cheating" needs proof: only acts
with no other explanation carry it (looking into the grader, returning old answers, working outside a call, answering
differently outside a grader). Practices that policy open allows are never cheating.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class ReasonKind(StrEnum):
    """Kinds of facts that speak against a candidate. In brackets: the content of `Reason.subject`."""

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
    LAYOUT = "layout"  # inputs with other strides are read as if they had the task's own (subject: "")
    MODE = "mode"  # differs from the task's model in the other of train() and eval(); the detail names which
    UNKNOWN = "unknown"  # not known to be harmless (symbol)
    LINKED = "linked"  # another library is linked (name)
    LOADED = "loaded"  # another library is loaded (path)
    MAPPED = "mapped"  # another library became part of the process (path)
    WRITTEN = "written"  # a library that the candidate wrote itself was loaded (path)
    UNNAMED_CODE = "unnamed_code"  # code without a file (bytes and when)
    ASKS_NOTHING = "asks_nothing"  # a library has no imports, so that its behaviour is unknown
    UNREADABLE = "unreadable"  # a library cannot be read (why)
    NOT_READABLE = "not_readable"  # the candidate's file cannot be read (why)
    COMPILER = "compiler"  # the file asks for another compiler (name)
    FLAG = "flag"  # a compiler's flag does more than optimise (flag)
    RELAXED = "relaxed"  # arithmetic that the policy refuses (flag or function)
    TAKES_NAME = "takes_name"  # native code defines a name of the CUDA runtime (name)
    PRIES = "pries"  # it looks into the process that grades it, or changes that one's code (what it does and when)
    CONDUCT = "conduct"  # an act that no kernel needs (the act and when)
    WRONG = "wrong"  # its answer is wrong, for an unknown reason (where)
    UNDECIDED = "undecided"  # the question could not be asked, or has no answer (why)
    MORE = "more"  # further reasons that were not kept (how many)


@dataclass(frozen=True)
class Reason:
    """One fact that speaks against a candidate, at a line of its file or at none (0)."""

    kind: ReasonKind
    subject: str
    line: int = 0


Refusal = Literal["cheating", "wrong_result", "not_allowed", "not_judged"]  # the gravest first
GRAVITY: tuple[Refusal, ...] = ("cheating", "wrong_result", "not_allowed", "not_judged")
WORDS: dict[str, str] = {  # sentence parts for people, by outcome
    "cheating": "what it did proves that it cheats",
    "wrong_result": "it gives wrong results",
    "not_allowed": "it does what policy or contract do not allow",
    "not_judged": "it could not be judged or believed",
}

# gate -> refusal that its failure proves, unless its reasons say so. A test keeps this table complete.
OF_GATES: dict[str, Refusal] = {
    # acts that the grader observed
    "ablation": "not_allowed",
    "computed anew": "cheating",
    "finished on return": "cheating",
    "function identities": "cheating",
    "one answer to each question": "cheating",
    "other clocks": "cheating",
    "out of turn": "cheating",
    "scheduling": "cheating",
    "threads and processes": "cheating",
    # wrong answers
    "another instance": "wrong_result",
    "finished in its stream": "wrong_result",
    "gradients": "wrong_result",
    "in a row": "wrong_result",
    "parameters unchanged": "wrong_result",
    "provenance (other addresses)": "wrong_result",
    "public inputs": "wrong_result",
    "timed outputs": "wrong_result",
    "without a grader in sight": "wrong_result",
    # refused by the policy or the contract
    "accuracy class": "not_allowed",
    "algebra": "not_allowed",
    "foreign operators": "not_allowed",
    "approximations": "not_allowed",
    "build_flags": "not_allowed",
    "compute-sanitizer": "not_allowed",
    "decisions": "not_allowed",
    "denormal numbers": "not_allowed",
    "dependent launches": "not_allowed",
    "global state": "not_allowed",
    "graphs": "not_allowed",
    "initcheck": "not_allowed",
    "instructions": "not_allowed",
    "kernels": "not_allowed",
    "libraries": "not_allowed",
    "mapped code": "not_allowed",
    "maths": "not_allowed",
    "memcheck": "not_allowed",
    "other mode": "not_allowed",
    "other shapes": "not_allowed",
    "other strides": "not_allowed",
    "own kernels": "not_allowed",
    "own parameters": "not_allowed",
    "prepared weights": "not_allowed",
    "provenance": "not_allowed",
    "provenance (fewer rows)": "not_allowed",
    "provenance (other libraries)": "not_allowed",
    "provenance (time)": "not_allowed",
    "questions": "not_allowed",
    "racecheck": "not_allowed",
    "shape locks": "not_allowed",
    "steady calls": "not_allowed",
    "symbols": "not_allowed",
    "synccheck": "not_allowed",
    "tf32": "not_allowed",
    # undecided
    "float64": "not_judged",
    "audit runs": "not_judged",
    "clock": "not_judged",
    "judgement": "not_judged",
    "leads in the text": "not_judged",
    "native names": "not_judged",
    "physical floor": "not_judged",
    "process events": "not_judged",  # the watched run failed; its observations are in the reasons
    "readable": "not_judged",
    "undisturbed reference": "not_judged",
}

OF_REASONS: dict[ReasonKind, Refusal] = {
    ReasonKind.PRIES: "cheating",
    ReasonKind.WRONG: "wrong_result",
    ReasonKind.CONDUCT: "not_allowed",
    ReasonKind.VENDOR: "not_allowed",
    ReasonKind.TORCH_OPERATOR: "not_allowed",
    ReasonKind.TORCH_INTERNAL: "not_allowed",
    ReasonKind.PYTHON: "not_allowed",
    ReasonKind.RUNS_PYTHON: "not_allowed",
    ReasonKind.SYSTEM: "not_allowed",
    ReasonKind.THREADS: "not_allowed",
    ReasonKind.DEVICE: "not_allowed",
    ReasonKind.RACES: "not_allowed",
    ReasonKind.FLUSHES: "not_allowed",
    ReasonKind.LAYOUT: "not_allowed",
    ReasonKind.MODE: "not_allowed",
    ReasonKind.LINKED: "not_allowed",
    ReasonKind.LOADED: "not_allowed",
    ReasonKind.MAPPED: "not_allowed",
    ReasonKind.WRITTEN: "not_allowed",
    ReasonKind.COMPILER: "not_allowed",
    ReasonKind.FLAG: "not_allowed",
    ReasonKind.RELAXED: "not_allowed",
    ReasonKind.UNKNOWN: "not_judged",
    ReasonKind.UNNAMED_CODE: "not_judged",
    ReasonKind.ASKS_NOTHING: "not_judged",
    ReasonKind.UNREADABLE: "not_judged",
    ReasonKind.NOT_READABLE: "not_judged",
    ReasonKind.TAKES_NAME: "not_judged",
    ReasonKind.UNDECIDED: "not_judged",
    ReasonKind.MORE: "not_judged",
}


def refusal_of(gate: str, reasons: Sequence[Reason] = ()) -> Refusal:
    """The refusal that a failed gate proves: by its reasons, if it has any, else by its name.

    The name may end with its object ("symbols (kernel.so)") or begin with the question ("as given: computed anew").
    A gate outside the table proves nothing ("not_judged").
    """
    if reasons:
        return gravest(OF_REASONS[reason.kind] for reason in reasons)
    whole = gate.rpartition(": ")[2]
    bare = re.sub(r" \([^()]*\)$", "", whole)
    return OF_GATES.get(whole) or OF_GATES.get(bare) or "not_judged"


def gravest(refusals: Iterable[Refusal]) -> Refusal:
    """The gravest of some refusals."""
    return min(refusals, key=GRAVITY.index, default="not_judged")
