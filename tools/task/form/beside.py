"""Finds the files beside a task that its text imports or names, without running it. Free of torch."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from foundry.knowledge import syntax
from foundry.knowledge.errors import TaskError

MOST_FILES = 256  # files that may belong to a task
LARGEST_BYTES = 1 << 30  # bytes of all files together; they are hashed at each reading of the task
_LONGEST_NAME = 200  # characters of a string that may be a path
_MOST_FOLDERS = 16  # folders below the task's in which the strings of one module are looked up


def files_beside(tree: ast.Module, task: Path, named: Iterable[str] = ()) -> dict[str, str]:
    """Maps each file that belongs to the task, by its path relative to the task's folder, to its sha256.

    These are files in the folder, or below, that the task imports, that a string of its text names, or that its
    options name. Modules among them are searched likewise. Raises TaskError for a named file that does not exist,
    and for too many or too large files.
    """
    folder = Path(os.path.realpath(task.parent))
    for name in named:
        if not _is_file_in(folder / name, folder):
            raise TaskError(f"{task.name}: files names {name[:_LONGEST_NAME]}, which is no file in the task's folder")
    found: dict[Path, str] = {Path(os.path.realpath(task)): ""}
    waiting: list[Iterator[Path]] = [_used_by(tree, folder, folder), (folder / name for name in named)]
    total = 0
    while waiting:
        for path in map(Path, map(os.path.realpath, waiting.pop())):
            if path in found or not _is_file_in(path, folder):
                continue
            total += path.stat().st_size
            if len(found) > MOST_FILES or total > LARGEST_BYTES:
                raise TaskError(
                    f"{task.name} uses more than {MOST_FILES} files beside it, or more than {LARGEST_BYTES >> 20} MB",
                    "keep them in a folder that does not lie beside the task",
                )
            content = path.read_bytes()
            found[path] = hashlib.sha256(content).hexdigest()
            if path.suffix == ".py" and (inner := _parsed(content)) is not None:
                waiting.append(_used_by(inner, path.parent, folder))
    return {str(path.relative_to(folder)): digest for path, digest in sorted(found.items()) if digest}


def _used_by(tree: ast.Module, own: Path, folder: Path) -> Iterator[Path]:
    """Paths that a module in the folder `own` may refer to; most do not exist."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(folder, alias.name)
        elif isinstance(node, ast.ImportFrom):
            start = own if node.level else folder
            for _ in range(node.level - 1):
                start = start.parent
            for alias in node.names:
                yield from _module_files(start, ".".join(filter(None, (node.module, alias.name))))
    yield from _named_by_strings(tree, [folder, own])


def _module_files(folder: Path, name: str) -> Iterator[Path]:
    """Possible source files of the module `a.b.c` and of its packages."""
    for part in name.split("."):
        yield folder / f"{part}.py"
        folder /= part
        yield folder / "__init__.py"


def _named_by_strings(tree: ast.Module, folders: list[Path]) -> Iterator[Path]:
    """Paths that the module's strings name in these folders, and in subfolders that they name.

    A path is often composed: `Path(__file__).parent / "tables" / "log.npy"`.
    """
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts = dict.fromkeys(value.strip("/") for value in values if isinstance(value, str) and _may_be_path(value))
    places = list(dict.fromkeys(folders))
    for place in places:  # the list grows in this loop
        for text in texts:
            path = place / text
            if path.is_dir() and path not in places and len(places) < _MOST_FOLDERS:
                places.append(path)
            yield path


def _may_be_path(text: str) -> bool:
    """True for a short printable text without ".." that is more than dots, slashes and spaces."""
    return 0 < len(text) <= _LONGEST_NAME and text.isprintable() and text.strip("./ ") != "" and ".." not in text


def _is_file_in(path: Path, folder: Path) -> bool:
    """True for a readable file inside the folder."""
    try:
        return path.is_file() and Path(os.path.realpath(path)).is_relative_to(folder) and os.access(path, os.R_OK)
    except (OSError, ValueError):  # a name that is too long, or holds a null byte
        return False


def _parsed(content: bytes) -> ast.Module | None:
    """The syntax tree; None for a file that is not Python, which fails with its line when it is imported."""
    try:
        return syntax.parse(content.decode("utf-8"))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
