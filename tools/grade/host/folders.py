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

from foundry.knowledge.candidate import Build
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.targets.base import build_cache, read_literals

TASK = Sandbox("task")
KEPT = 256  # build folders; the ones unused for longest are removed first
LOAD_S = 60.0  # a file whose library is built already; a second on a quiet machine, over 20 on a crowded one
SELF_BUILD_S = 300.0  # a file that compiles itself at import (load_inline against torch's headers)
# What a file says that compiles itself; any other that is still loading after LOAD_S hangs.
_SELF_BUILDING = re.compile(
    r"compile|cpp_extension|load_inline|subprocess|popen|triton|numba|cupy|nvrtc|nvcc|g\+\+", re.I
)
_COMPILERS = re.compile(r"cpp_extension|load_inline|triton|torch\.compile|cupy|numba|cuda")


@dataclass(frozen=True)
class CandidateFolders:
    """Folders and settings of one candidate's process."""

    environment: dict[str, str]
    """Sends every cache and temporary file of torch, Triton and CUDA to the candidate's own folders."""
    sandbox: Sandbox
    """What the process may read and write."""
    locks: list[int]
    """Open files that keep the build folder from being removed; close them when the process has ended."""


def prepare_folders(text: str, scratch: Path) -> CandidateFolders:
    """Makes the folders of a process that runs the candidate `text`. Raises OSError.

    The process writes to `scratch` and to its own build folder. From the shared build cache it may open libraries whose
    names it knows, but not list them.
    """
    scratch, cache = scratch.absolute(), build_cache().absolute()
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):  # a later build says why it cannot be made
        # a process is confined to what exists: one that is made before the machine's first build could not open it
        cache.mkdir(parents=True, exist_ok=True)
    builds, locks = scratch / "builds", list[int]()
    if compiles_itself(text):
        builds = extension_folder(text)
        locks.append(lock_folder(builds))
    builds.mkdir(exist_ok=True)
    environment = {"USER": "candidate", "TMPDIR": str(temporary), "FOUNDRY_BUILD_CACHE": str(cache)}
    environment |= keep_builds_in(builds)
    writable = (str(scratch), str(builds)) if locks else (str(scratch),)
    return CandidateFolders(environment, Sandbox("candidate", (), (str(cache),), writable, str(temporary)), locks)


def keep_builds_in(builds: Path) -> dict[str, str]:
    """Environment variables with which torch, Triton, CUDA and users' own caches keep what they compile in the folder
    `builds`."""
    return {
        "HOME": str(builds),  # ~/.cache, where people look for a library by a hash of its text
        "XDG_CACHE_HOME": str(builds / ".cache"),
        "TORCH_EXTENSIONS_DIR": str(builds),
        "TORCHINDUCTOR_CACHE_DIR": str(builds / "inductor"),
        "TRITON_CACHE_DIR": str(builds / "triton"),
        "CUDA_CACHE_PATH": str(builds / "nv"),
    }


def compiles_itself(text: str) -> bool:
    """True if a candidate may compile code while it is imported, and so needs a build folder that outlives its process.

    Foundry's own files do not: they are built before, into the build cache.
    """
    try:
        return read_literals(text) is None and _COMPILERS.search(text) is not None
    except SyntaxError:
        return False


def load_seconds(text: str, build: Build) -> float:
    """Seconds that importing a file may take; more for one that compiles itself at import."""
    return SELF_BUILD_S if not build.artifact and _SELF_BUILDING.search(text) else LOAD_S


def extension_folder(text: str) -> Path:
    """The build folder of a candidate text. It may not exist yet."""
    return build_cache().absolute() / "extensions" / hashlib.sha256(text.encode()).hexdigest()[:32]


def lock_folder(folder: Path) -> int:
    """Makes a build folder and returns an open file that keeps it from being removed until it is closed.

    A process that was killed while it compiled leaves torch's lock file behind, and every later process would wait for
    it. So lock files are removed if no other process uses the folder. May delete the oldest build folders.
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
    """Deletes the build folders in `root` unused for longest, so that KEPT remain. Errors of the file system are
    ignored."""
    with contextlib.suppress(OSError):
        folders = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime)
        for folder in folders[: max(0, len(folders) - KEPT)]:
            shutil.rmtree(folder, ignore_errors=True)
