"""The folders of a candidate's process: its scratch, the builds it may load, and what it built itself.

Files that compile themselves at import (load_inline) keep what they built, so that a second time is quick: one folder
for each candidate text, by its digest, and only a process that runs this very text may write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from foundry.tools.process.sandbox import Sandbox
from foundry.tools.targets.base import build_cache, read_literals

TASK = Sandbox("task")
KEPT = 256  # folders; the ones unused for longest go
_COMPILERS = re.compile(r"cpp_extension|load_inline|triton|torch\.compile|cupy|numba|cuda")


@dataclass(frozen=True)
class Quarters:
    """What a candidate's process starts with; `leases` are open files to close when it has ended."""

    environment: dict[str, str]
    sandbox: Sandbox
    leases: list[int]


def quarters(text: str, scratch: Path) -> Quarters:
    """A candidate writes to its scratch and to its own builds, and opens libraries of the build cache by name.

    The settings send every cache and temporary file of torch, triton and CUDA there. Raises OSError.
    """
    scratch, cache = scratch.absolute(), build_cache().absolute()
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    builds, leases = scratch / "builds", list[int]()
    if compiles_itself(text):
        builds = extension_folder(text)
        leases.append(lease(builds))
    environment = {
        "HOME": str(scratch),
        "USER": "candidate",
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(scratch / ".cache"),
        "FOUNDRY_BUILD_CACHE": str(cache),
        "TORCH_EXTENSIONS_DIR": str(builds),
        "TORCHINDUCTOR_CACHE_DIR": str(builds / "inductor"),
        "TRITON_CACHE_DIR": str(builds / "triton"),
        "CUDA_CACHE_PATH": str(builds / "nv"),
    }
    writable = (str(scratch), str(builds)) if leases else (str(scratch),)
    return Quarters(environment, Sandbox("candidate", (), (str(cache),), writable, str(temporary)), leases)


def compiles_itself(text: str) -> bool:
    """Whether a candidate may have builds of its own to keep; Foundry's own files have theirs in the build cache."""
    try:
        return read_literals(text) is None and _COMPILERS.search(text) is not None
    except SyntaxError:
        return False


def extension_folder(text: str) -> Path:
    """The folder of a candidate text. It may not exist."""
    return build_cache().absolute() / "extensions" / hashlib.sha256(text.encode()).hexdigest()[:32]


def lease(folder: Path) -> int:
    """Makes a folder of builds and says that it is in use, until the returned open file is closed.

    A process that was killed while it compiled leaves torch's lock file behind, for which every later one would wait:
    it is removed when nobody else uses the folder.
    """
    if not folder.exists():
        _forget_oldest(folder.parent)
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for lock in folder.glob("**/lock"):
            lock.unlink(missing_ok=True)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def _forget_oldest(root: Path) -> None:
    with contextlib.suppress(OSError):
        folders = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime)
        for folder in folders[: max(0, len(folders) - KEPT)]:
            shutil.rmtree(folder, ignore_errors=True)
