"""Events of the interpreter that no kernel needs, in loading, in a call or between calls, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foundry.knowledge.reasons import OF_REASONS, ReasonKind, Refusal, refusal_of

_FROM_TEXT = (
    "runs Python from a text (exec, eval or compile), whose lines nobody can watch, even if it is a constant: "
    "write that code as functions and classes of the file"
)
LOOKS_AWAY = {
    "socket.connect": "opens a network connection",
    "socket.bind": "opens a network port",
    "socket.getaddrinfo": "asks the network for a name",
    "socket.sendto": "sends over the network",
    "sys.settrace": "puts itself under every Python call of the process",
    "sys.setprofile": "puts itself under every Python call of the process",
    "sys.addaudithook": "listens to the interpreter's events",
    "gc.get_objects": "searches the memory of the process that grades it",
    "gc.get_referrers": "searches the memory of the process that grades it",
    "gc.get_referents": "searches the memory of the process that grades it",
    "sys._getframe": "looks into its callers",
    "sys._current_frames": "looks into its callers",
    "object.__getattr__": "looks into its callers",  # of a traceback or a generator
    "marshal.loads": "runs code that cannot be read here",
    "code.__new__": "makes code at run time",
    "function.__new__": "makes code at run time",
    "object.__setattr__": "changes a function or a class of others",
    "exec": _FROM_TEXT,
    "compile": _FROM_TEXT,
    "ctypes.string_at": "reads memory by its address",
    "mmap.__new__": "maps memory of its own",
    "os.fork": "starts a process of itself",
    "os.forkpty": "starts a process of itself",
    "os.exec": "replaces its process",
    "os.kill": "sends signals",
}
# Events that admit no other reading than that the process is looked into. A frame of its own is asked for honestly too:
# `inspect.currentframe()` tells a file where it lies.
PRYING = frozenset(
    name
    for name in LOOKS_AWAY
    if name.startswith("gc.") or name in ("sys.settrace", "sys.setprofile", "sys.addaudithook", "sys._current_frames")
)
_FRAMES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})  # attributes that lead to a caller's names
_ANONYMOUS = -1  # the file of memory that is nobody's but the process's: scratch like any other
# These count wherever a line of the candidate's leads to them; the others, which libraries do too, on its own lines.
FROM_ANYWHERE = frozenset(
    name
    for name in LOOKS_AWAY
    if name.startswith(("socket.", "os.")) or name in ("sys.settrace", "sys.setprofile", "sys.addaudithook")
)


def kind_of(event: str) -> ReasonKind:
    """Whether an event is one of prying, or one that no kernel needs."""
    return ReasonKind.PRIES if event in PRYING else ReasonKind.CONDUCT


def proves(gate: str, event: str = "") -> Refusal:
    """What it proves that a gate over a process failed: because of an event of the interpreter, or of none."""
    return OF_REASONS[kind_of(event)] if event else refusal_of(gate)


def looks_away(event: str, arguments: Sequence[Any]) -> bool:
    """Whether an event with these arguments is one of LOOKS_AWAY."""
    if event == "object.__getattr__":
        return arguments[1] in _FRAMES
    return event in LOOKS_AWAY and not (event == "mmap.__new__" and arguments[0] == _ANONYMOUS)
