"""Records, at every call of a candidate's process, acts that no kernel needs: inspecting the process and making code.

The audit watches some calls closely; a file that waits until that is over still meets this hook. The hook is
Python's own (PEP 578): Python code cannot remove it.
"""

from __future__ import annotations

import atexit
import inspect
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from foundry.tools.audit.acts.looks import FROM_ANYWHERE, LOOKS_AWAY, looks_away

MOST_SEEN = 40  # acts that are recorded
END_S, END_BYTES = 1.0, 200  # seconds for exit functions to finish, and bytes of their output that are read
_GIVE_FRAMES = (inspect.__file__, traceback.__file__)  # files that fetch frames for their callers


class Sentry:
    """Records such acts; created once in a process, before the candidate's text runs there.

    `where` is the candidate's file.
    """

    def __init__(self, where: str) -> None:
        """Installs the audit hook that records such acts of the candidate's file `where`."""
        self._where = where
        self._busy = False
        self._seen: dict[tuple[str, int], None] = {}
        sys.addaudithook(self._note)

    def findings(self) -> list[tuple[str, str]]:
        """(description with the line, event) of each act so far."""
        found = {f"line {line}: {LOOKS_AWAY[event]}": event for event, line in self._seen}
        return list(found.items())

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Audit hook: records an act that looks away, with the line of the candidate's file that caused it, at most
        MOST_SEEN."""
        if self._busy or not looks_away(event, arguments) or len(self._seen) >= MOST_SEEN:
            return
        self._busy = True  # looking at frames raises events too
        try:
            line = line_of(sys._getframe(1), event, self._where)
            if line:
                self._seen[(event, line)] = None
        finally:
            self._busy = False


def line_of(frame: FrameType | None, event: str, where: str) -> int:
    """The line of the file `where` that raised an event, 0 if it did not.

    For an event of FROM_ANYWHERE, the nearest caller in that file counts. For others only `frame` itself counts; for
    sys._getframe, the caller of inspect or traceback.
    """
    if event in FROM_ANYWHERE:
        while frame is not None and frame.f_code.co_filename != where:
            frame = frame.f_back
    elif event == "sys._getframe":
        while frame is not None and frame.f_code.co_filename in _GIVE_FRAMES:
            frame = frame.f_back
    return frame.f_lineno if frame is not None and frame.f_code.co_filename == where else 0


class AtExit:
    """Functions that the candidate's file registers for the end of its process; created once, before its text runs
    there."""

    def __init__(self, where: str) -> None:
        """Replaces atexit.register by a function that also keeps what the file `where` registers."""
        self._left: list[Callable[[], object]] = []
        register = atexit.register

        def registered(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Callable[..., Any]:
            """Registers a function as usual and keeps it if the candidate's file calls."""
            if sys._getframe(1).f_code.co_filename == where:
                self._left.append(lambda: function(*arguments, **keywords))
            return register(function, *arguments, **keywords)

        setattr(atexit, "register", registered)  # noqa: B010  # the type checker knows it as another kind of function

    def printed(self) -> str:
        """The beginning of the output of these functions, run in a copy of this process that ends."""
        if not self._left:
            return ""
        sys.stdout.flush()  # otherwise the copy would print earlier output again
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.dup2(writes, 1)
                for function in reversed(self._left):
                    function()
                sys.stdout.flush()
            finally:
                os._exit(0)
        os.close(writes)
        try:
            is_said = select.select([reads], [], [], END_S)[0]
            return os.read(reads, END_BYTES).decode(errors="replace").strip() if is_said else ""
        finally:
            os.close(reads)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
