"""Interpreter events that no kernel needs, in loading, in a call or between calls, and what each means."""

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
    "object.__getattr__": "looks into its callers",  # attributes of a traceback or a generator
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
# Events that always mean prying into the process. `sys._getframe` is not among them: `inspect.currentframe()` tells a
# file where it lies, which honest files ask too.
PRYING = frozenset(
    name
    for name in LOOKS_AWAY
    if name.startswith("gc.") or name in ("sys.settrace", "sys.setprofile", "sys.addaudithook", "sys._current_frames")
)
_FRAMES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})  # attributes that lead to a caller's names
_ANONYMOUS = -1  # file descriptor of memory without a file: ordinary scratch
# Events that count wherever a line of the candidate leads to them; the others, common in libraries, only on its lines.
FROM_ANYWHERE = frozenset(
    name
    for name in LOOKS_AWAY
    if name.startswith(("socket.", "os.")) or name in ("sys.settrace", "sys.setprofile", "sys.addaudithook")
)


def kind_of(event: str) -> ReasonKind:
    """PRIES for an event that looks into the grading process, else CONDUCT."""
    return ReasonKind.PRIES if event in PRYING else ReasonKind.CONDUCT


def proves(gate: str, event: str = "") -> Refusal:
    """The refusal that a failed gate over a process amounts to: that of the event, or of the gate if no event is
    given."""
    return OF_REASONS[kind_of(event)] if event else refusal_of(gate)


def looks_away(event: str, arguments: Sequence[Any]) -> bool:
    """True if an event with these arguments is one of LOOKS_AWAY."""
    if event == "object.__getattr__":
        return arguments[1] in _FRAMES
    return event in LOOKS_AWAY and not (event == "mmap.__new__" and arguments[0] == _ANONYMOUS)
