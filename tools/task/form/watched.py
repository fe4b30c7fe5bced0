"""Watches the files beside a task that its code reads: each must be part of the task. Runs in a worker."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foundry.knowledge.errors import TaskError
from foundry.knowledge.task import Task

_OPENED: list[list[str]] = []  # files opened, one list for each active watch
_HOOKED: list[bool] = []  # an audit hook stays for the life of the process


@contextlib.contextmanager
def only_known_files(task: Task) -> Iterator[None]:
    """Raises TaskError after the `with` body if the task's code has read an unlisted file in its folder.

    The task's digest would otherwise not cover all that its answer depends on.
    """
    if not _HOOKED:
        sys.addaudithook(_note)
        _HOOKED.append(True)
    opened: list[str] = []
    _OPENED.append(opened)
    try:
        yield
    finally:
        _OPENED.remove(opened)
    folder, own = Path(os.path.realpath(Path(task.path).parent)), Path(os.path.realpath(task.path))
    for text in dict.fromkeys(opened):
        path = Path(os.path.realpath(text))
        if not path.is_file() or not path.is_relative_to(folder) or path.parent.name == "__pycache__" or path == own:
            continue
        name = str(path.relative_to(folder))
        if name not in task.options.files:
            raise TaskError(
                f"{own.name} reads {name}, and what a task reads is part of what is proven",
                f"name it in {own.stem}.toml beside the task: files = [{json.dumps(name)}]",
            )


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: keeps the path of each file that is opened for reading."""
    if event == "open" and _OPENED and isinstance(arguments[0], str) and "w" not in str(arguments[1]):
        for opened in _OPENED:
            opened.append(os.path.abspath(arguments[0]))  # noqa: PTH100 (a Path costs more, at every open)
