"""Reads a task file and the options beside it without ever running it."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from foundry.knowledge.codec import to_plain
from foundry.knowledge.errors import TaskError, UsageError
from foundry.knowledge.task import AccuracyClass, Mode, OtherShapes, Policy, Task, TaskOptions, module_constants
from foundry.tools.task.form.beside import files_beside
from foundry.tools.task.form.members import check_members
from foundry.tools.task.plain_file import parse_python, read_source

SHARED_OPTIONS = "task.toml"
LARGEST_OPTIONS_BYTES = 256 << 10
LARGEST_SIZE = 1 << 40  # largest value of a module constant: no tensor has a dimension beyond it


class OptionsFile(BaseModel):
    """The keys of `task.toml` (or `<stem>.toml`); every one is optional."""

    model_config = ConfigDict(extra="forbid")

    task: str = ""
    """Name of the task file these options belong to; needed in a shared `task.toml` of a folder of tasks."""
    instructions: str = ""
    """To the experts, in your words."""
    policy: Policy = "fair"
    tolerance: Annotated[float, Field(gt=0, le=1)] | None = None
    """Elementwise, scaled by the output's own spread; the dtype's default (1e-3 or 1e-2) when absent."""
    accuracy: AccuracyClass | None = None
    """The least accurate class that is still accepted."""
    dtypes: tuple[str, ...] = ()
    """Input dtypes to solve for besides the file's own."""
    extra_shapes: Annotated[tuple[dict[str, int], ...], Field(max_length=64)] = ()
    """Tables that override module constants of the task file; the kernel must be right for each."""
    mode: Mode = "as_given"
    start: str = ""
    """A kernel file to start from, relative to the options file."""
    input_range: tuple[float, float] | None = None
    """Lowest and highest value of floating-point inputs, drawn uniformly instead of by get_inputs."""
    model: str = ""
    """Name of the model's class; needed where it is not Model and other classes may be meant."""
    other_shapes: OtherShapes = "raise"
    """What a kernel does for shapes, modes and gradients it was not compiled for: raise, or run the task's forward."""
    files: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    """Files in the task's folder that it reads and its text does not name; those that it names are found."""

    @model_validator(mode="after")
    def _consistent(self) -> OptionsFile:
        """Raises ValueError for an unknown dtype or an empty or infinite range of inputs."""
        known = {"float32", "float16", "bfloat16"}
        for dtype in self.dtypes:
            if dtype not in known:
                raise ValueError(f"dtypes: {dtype[:40]} is not one of {', '.join(sorted(known))}")
        low, high = self.input_range or (0.0, 1.0)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError("input_range: two finite numbers, the lower first")
        return self


def read_task(
    path: Path, *, scale: int | None = None, model: str = "", other_shapes: OtherShapes | None = None
) -> Task:
    """The task in `path`. The file is parsed, never executed.

    `scale` sets the file's module constant SCALE (its size on a large device). `model` names the model's class, and
    `other_shapes` what kernels do for other shapes; both go before the options. Raises TaskError with one line that
    names the file, the line and what is missing.
    """
    source = _read_text(path)
    tree = _parse(source, path)
    constants = module_constants(tree)
    overrides: dict[str, int] = {}
    if scale is not None:
        if not 1 <= scale <= LARGEST_SIZE:
            raise TaskError(f"--scale {scale} is not a size", "give a whole number of at least 1")
        if "SCALE" not in constants:
            raise TaskError(f"{path.name} has no module constant SCALE", "add `SCALE = 1` and use it in get_inputs")
        overrides["SCALE"] = scale
    parsed, options = _read_options(path, constants)
    chosen = check_members(tree, path.name, model or parsed.model)
    options = replace(
        options,
        model="" if chosen == "Model" else chosen,
        files=files_beside(tree, path, parsed.files),
    )
    said = {key: value for key, value in to_plain(options).items() if value or key not in ("model", "files")}
    digest = hashlib.sha256(json.dumps([source, said, overrides], sort_keys=True).encode("utf-8")).hexdigest()
    return Task(
        name=path.stem,
        path=str(path.resolve()),
        source=source,
        digest=digest,
        options=options,
        overrides=overrides,
        other_shapes=other_shapes or parsed.other_shapes,
    )


def _read_text(path: Path) -> str:
    """The task's source; raises TaskError."""
    if path.is_dir():
        raise TaskError(f"{path} is a folder, not a task", "name one .py file in it")
    if not _is_there(path):
        raise TaskError(f"no task file {path}", "check the path")
    if not _is_text(str(path)):
        raise TaskError("the task's path is not UTF-8", "rename it: it goes into records and receipts")
    try:
        text = read_source(path)
    except UsageError as error:
        raise TaskError(error.problem, error.remedy) from None
    if not text.strip():
        raise TaskError(f"{path} is empty", "a task defines class Model and get_inputs()")
    return text


def _parse(source: str, path: Path) -> ast.Module:
    """The task's syntax tree; raises TaskError with the line."""
    try:
        tree = parse_python(source, str(path))
    except SyntaxError as error:
        where = f"line {error.lineno}" if error.lineno else "somewhere"
        raise TaskError(f"{path.name}, {where}: {error.msg}") from None
    return tree


def _read_options(path: Path, constants: dict[str, Any]) -> tuple[OptionsFile, TaskOptions]:
    """(options as written, options checked) of the file beside the task, or the defaults. Raises TaskError if the file
    says that it belongs to another task."""
    own = path.with_suffix(".toml")
    shared = path.with_name(SHARED_OPTIONS)
    if own != path and _is_there(own):
        parsed = _parse_options(own)
        if parsed.task not in ("", path.name, path.stem):
            raise TaskError(f"{own.name} says it belongs to {parsed.task[:100]}, not to {path.name}")
        return parsed, _check_options(parsed, own, constants, path)
    if shared != path and _is_there(shared):
        parsed = _parse_options(shared)
        if parsed.task in (path.name, path.stem) or (not parsed.task and _is_only_task(path)):
            return parsed, _check_options(parsed, shared, constants, path)
    return OptionsFile(), TaskOptions()


def _is_there(path: Path) -> bool:
    """True if a file of this name exists, readable or not: an unreadable one must be reported, not ignored."""
    return os.path.lexists(path)


def _is_text(name: str) -> bool:
    """True if the name can be encoded as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_only_task(path: Path) -> bool:
    """True if the folder has no other Python file."""
    return [found.name for found in path.parent.glob("*.py")] == [path.name]


def _parse_options(path: Path) -> OptionsFile:
    """The options in task.toml. Raises TaskError for an invalid file."""
    try:
        content = tomllib.loads(read_source(path, largest_bytes=LARGEST_OPTIONS_BYTES))
    except UsageError as error:
        raise TaskError(error.problem, error.remedy) from None
    except (ValueError, RecursionError) as error:  # not TOML; a number or a nesting beyond all use
        raise TaskError(f"{path.name} is not TOML: {str(error)[:200]}") from None
    try:
        return OptionsFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part)[:60] for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")[:300]
        if first["type"] == "extra_forbidden":
            message = f"unknown key; known are {', '.join(OptionsFile.model_fields)}"
        raise TaskError(f"{path.name}: {where + ': ' if where else ''}{message}") from None


def _check_options(parsed: OptionsFile, path: Path, constants: dict[str, Any], task: Path) -> TaskOptions:
    """The options, after checking that overrides name existing constants and the start kernel is a file. Raises
    TaskError if one does not."""
    for shape in parsed.extra_shapes:
        for name, value in shape.items():
            if name not in constants:
                raise TaskError(
                    f"{path.name}: extra_shapes sets {name[:60]}, which is no module constant of {task.name}"
                )
            if not 1 <= value <= LARGEST_SIZE:
                raise TaskError(f"{path.name}: extra_shapes sets {name[:60]} to no size; sizes are at least 1")
    start = ""
    if parsed.start:
        # Never raises, not even on a loop of links.
        start = os.path.realpath(path.parent / parsed.start.replace("\0", " "))
        if not os.path.isfile(start):  # noqa: PTH113 (Path.is_file raises for a name that is too long)
            raise TaskError(f"{path.name}: start names {parsed.start[:200]}, which is not a file")
    return TaskOptions(
        instructions=parsed.instructions.strip(),
        policy=parsed.policy,
        tolerance=parsed.tolerance,
        accuracy=parsed.accuracy,
        dtypes=parsed.dtypes,
        extra_shapes=parsed.extra_shapes,
        mode=parsed.mode,
        start=start,
        input_range=parsed.input_range,
    )
