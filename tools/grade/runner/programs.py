"""Identifies the program that a command starts by the file that the system will run, not by its name.

A compiler may be a script or have a name of its own, chosen by its installer. A file or link that the candidate made
is its own program under any name.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foundry.tools.audit.acts import shell

TICK_NS = 10_000_000  # ns; file systems take times from the kernel's tick, at most 10 ms late (CONFIG_HZ=100)
MOST_TEXT = 4000  # characters of a command, a path or a script
_TOOLS = ("c++", "g++", "cc", "gcc", "clang++", "clang", "nvcc", "ninja", "cmake", "make", "ld")
_NAMED_TOOLS = ("CC", "CXX")  # variables that name compilers, which PyTorch calls
# Folders of system programs, some of them scripts (ldconfig); their names are enough.
_SYSTEM = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")
_SHELLS = ("sh", "bash", "dash")
_SHEBANG = re.compile(r"#!.*\b(?:ba|da)?sh\b")


class Programs:
    """The compilers and build tools of this environment when the object is made, before the candidate's text runs."""

    def __init__(self) -> None:
        """Finds the compilers and build tools on PATH and in the environment, by their files."""
        named = {word: "c++" for name in _NAMED_TOOLS for word in os.environ.get(name, "").split()[:1]}
        names = named | {name: name for name in _TOOLS}
        self._tools = {_identity(Path(found)): tool for name, tool in names.items() if (found := shutil.which(name))}
        self._started_ns = time.time_ns() - TICK_NS

    def command(self, executable: Any, command: Any, folder: Any = None, environment: Any = None) -> list[str]:
        """The words of a command, the first of which names the program that runs; `sh -c` and its text for a script.

        The arguments are those of the event "subprocess.Popen".
        """
        words = [plain(word) for word in command[:40]] if isinstance(command, list | tuple) else [plain(command)]
        name = os.fsdecode(executable or (command[0] if isinstance(command, list | tuple) and command else command))
        here = Path(os.fsdecode(folder or "."))
        try:
            place = _place(name, here, environment)
            if tool := self._tools.get(_identity(place)):
                return [tool, *words[1:]]
            real = place.resolve()
            if place.name in _SHELLS and not self._is_own(place):
                told = _script_of(words, here) or ["sh", *words[1:]]
                return [shell.expanded(word, _variables(environment)) for word in told]
            if str(real.parent) in _SYSTEM:
                return [place.name if str(place.parent) in _SYSTEM else real.name, *words[1:]]
            if text := _script(place):
                return ["sh", "-c", shell.expanded(text, _variables(environment))]
            is_own = self._is_own(place) or self._is_own(real)
            return [f"./{place.name} (its own)" if is_own else name, *words[1:]]
        except (OSError, ValueError):  # then it cannot be run either
            return [name, *words[1:]]

    def _is_own(self, place: Path) -> bool:
        """True if the candidate made the file, or the link, of this name."""
        return place.lstat().st_ctime_ns >= self._started_ns


def short(text: str) -> str:
    """A text; a longer one is cut and marked with words that no build command begins with."""
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n...and more"


def plain(value: Any) -> str:
    """An argument of an event (a command's word, a path) as text."""
    if isinstance(value, list | tuple):
        return " ".join(plain(item) for item in list(value)[:40])
    return short(os.fsdecode(value) if isinstance(value, bytes) else str(value))


def _place(name: str, here: Path, environment: Any) -> Path:
    """The file that the system runs for a program's name."""
    if "/" in name:
        return here / name
    path = _variables(environment).get("PATH", os.defpath)
    found = shutil.which(name, path=os.pathsep.join(str(here / entry) for entry in path.split(os.pathsep)))
    return Path(found or name)


def _variables(environment: Any) -> dict[str, str]:
    """The environment given to a command, or this process's own if none is given, as text."""
    given = environment if isinstance(environment, Mapping) else os.environ
    return {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}


def _identity(place: Path) -> tuple[int, ...]:
    """Device, inode, size and modification time of a file, which change if it is replaced or written to. Raises
    OSError."""
    seen = place.stat()
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def _script_of(words: Sequence[str], here: Path) -> list[str]:
    """`sh FILE` as `sh -c TEXT`; empty if the shell is given its text or the file cannot be read."""
    files = [word for word in words[1:] if not word.startswith("-")]
    if not files or "-c" in words[1:2]:
        return []
    text = _read(here / files[0])
    return ["sh", "-c", text] if text else []


def _script(place: Path) -> str:
    """The text of a shell script; "" for another program."""
    text = _read(place)
    return text if _SHEBANG.match(text) else ""


def _read(place: Path) -> str:
    """A file's text, shortened; "" if it cannot be read."""
    try:
        with place.open(encoding="utf-8") as file:
            return short(file.read(MOST_TEXT + 1))
    except (OSError, ValueError):
        return ""
