"""The folders of a candidate's process: its scratch, the builds it may load, and what it built itself.

Files that compile themselves at import (load_inline) keep what they built, so that a second time is quick: one folder
for each candidate text, by its digest, and only a process that runs this very text may write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from foundry.tools.sandbox import Sandbox
from foundry.tools.targets.base import build_cache

TASK = Sandbox("task")
KEPT = 256  # folders; the ones unused for longest go


def extension_folder(text: str) -> Path:
    """The folder of a candidate text. It may not exist."""
    return build_cache().absolute() / "extensions" / hashlib.sha256(text.encode()).hexdigest()[:32]


def lease(text: str) -> int:
    """Makes the folder of a text and says that it is in use, until the returned open file is closed.

    Raises OSError. A process that was killed while it compiled leaves torch's lock file behind, for which every later
    one would wait: it is removed when nobody else uses the folder.
    """
    folder = extension_folder(text)
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


def candidate_sandbox(scratch: Path, text: str) -> Sandbox:
    """A candidate writes to its scratch and to its own builds, and opens libraries of the build cache by name."""
    temporary = scratch.absolute() / "tmp"
    temporary.mkdir(exist_ok=True)
    places = (str(scratch.absolute()), str(extension_folder(text)))
    cache = (str(build_cache().absolute()),)
    return Sandbox("candidate", openable=cache, writable=places, temporary=str(temporary))


def private_environment(scratch: Path, text: str) -> dict[str, str]:
    """Settings that send every cache and temporary file of torch, triton and CUDA to folders of the process's own."""
    extensions = extension_folder(text)
    return {
        "HOME": str(scratch),
        "USER": "candidate",
        "TMPDIR": str(scratch / "tmp"),
        "XDG_CACHE_HOME": str(scratch / ".cache"),
        "FOUNDRY_BUILD_CACHE": str(build_cache().absolute()),
        "TORCH_EXTENSIONS_DIR": str(extensions),
        "TORCHINDUCTOR_CACHE_DIR": str(extensions / "inductor"),
        "TRITON_CACHE_DIR": str(extensions / "triton"),
        "CUDA_CACHE_PATH": str(extensions / "nv"),
    }


def _forget_oldest(root: Path) -> None:
    with contextlib.suppress(OSError):
        folders = sorted(root.iterdir(), key=lambda folder: folder.stat().st_mtime)
        for folder in folders[: max(0, len(folders) - KEPT)]:
            shutil.rmtree(folder, ignore_errors=True)
