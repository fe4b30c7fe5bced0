"""Hides, while the candidate's code runs, that a grader runs it: what it finds is what any benchmark's process shows.

Only the audit's watched process does so. A file that is honest where it recognises the grader is wrong there.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import types
from pathlib import Path
from types import ModuleType, TracebackType

OURS = __name__.split(".")[0]
CACHE = "FOUNDRY_BUILD_CACHE"
ARGUMENTS = ["benchmark.py"]


class Disguise:
    """A context: inside it no module, argument or variable names the grader, and the garbage collector is on."""

    def __init__(self) -> None:
        self._hidden: dict[str, ModuleType] = {}
        self._arguments = sys.argv
        _hide_variables()

    def __enter__(self) -> None:
        names = [name for name in sys.modules if name == OURS or name.startswith(f"{OURS}.")]
        self._hidden = {name: sys.modules.pop(name) for name in names}
        self._hidden["__main__"] = sys.modules.pop("__main__")
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = list(ARGUMENTS)
        gc.enable()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        gc.disable()
        sys.argv = self._arguments
        sys.modules.update(self._hidden)


def _hide_variables() -> None:
    """Takes our variables out of the environment; libraries that were compiled before are found all the same, where a
    file of ours looks for them without the variable."""
    cache = os.environ.get(CACHE)
    for name in [name for name in os.environ if name.startswith("FOUNDRY_")]:
        del os.environ[name]
    place = Path.home() / ".cache" / "foundry" / "build"
    if cache and Path(cache) != place:
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(cache, target_is_directory=True)
