"""Temporary folders of commands, removed when the command ends.

A process that was killed leaves its folder behind; the next process that makes one removes it. A locked file marks a
folder in use, because the system ends the lock with the process however it ends. A process number would not do:
containers that share /tmp count their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

IN_USE = ".foundry-in-use"  # the locked file: a folder without it is not ours, whatever its name is
_PREFIX = "foundry-"
_USUAL = ("/tmp", "/var/tmp")


@contextlib.contextmanager
def scratch_folder(purpose: str, root: str | None = None) -> Iterator[Path]:
    """An empty folder `foundry-<purpose>-...` for the length of the block, below `root` or where temporary files go."""
    place = root or tempfile.gettempdir()
    _remove_abandoned(Path(place))
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{purpose}-", dir=place) as made:
        lock = _lock(Path(made))
        try:
            yield Path(made)
        finally:
            os.close(lock)


@contextlib.contextmanager
def plain_folder(wanted: Path, purpose: str) -> Iterator[Path]:
    """Yields `wanted`, or a temporary folder if its path has characters that a shell must quote.

    Some programs do not quote paths. If every root for temporary folders has such characters too, yields `wanted`.
    """
    roots = (tempfile.gettempdir(), *_USUAL)
    root = next((root for root in roots if _is_plain(root) and os.access(root, os.W_OK | os.X_OK)), None)
    if _is_plain(str(wanted.absolute())) or root is None:
        yield wanted
        return
    with scratch_folder(purpose, root) as made:
        yield made


def _is_plain(path: str) -> bool:
    """True if a shell needs no quotes around the path."""
    return shlex.quote(path) == path


def _lock(folder: Path) -> int:
    """Marks the folder as in use. The file gets its name once it is locked, so no process can find it unlocked."""
    unnamed = folder / f"{IN_USE}-soon"
    handle = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: no other process can remove the folder either
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(folder / IN_USE)
    return handle


def _remove_abandoned(root: Path) -> None:
    """Removes what killed processes of this user left below `root`."""
    with contextlib.suppress(OSError):
        for folder in root.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                found = folder.lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                    _remove_unused(folder)


def _remove_unused(folder: Path) -> None:
    """Removes one folder if it was made by `scratch_folder` and is not in use. Raises OSError otherwise."""
    handle = os.open(folder / IN_USE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
