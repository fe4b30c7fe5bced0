"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from foundry.tools.command_line import choose

OtherShapesOption = Annotated[
    str | None, typer.Option(help="raise, or reference: the kernel runs the task's own forward; default: the task's.")
]
ClassOption = Annotated[str, typer.Option("--class", metavar="NAME", help="The model's class, if it is not Model.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
PlainOption = Annotated[bool, typer.Option("--plain", help="A line an evaluation instead of the live view.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Plain lines, with every candidate's whole recipe below its own.")
]
RunArgument = Annotated[str, typer.Argument(help='A run: its folder, the start of its id, or "last".')]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds run directories.")]
ScaleOption = Annotated[int | None, typer.Option(min=1, help="Sets the task's SCALE.")]
StoreOption = Annotated[str | None, typer.Option("--store", help="Folder or Chroma server URL of the store.")]
TargetOption = Annotated[str, typer.Option(help="cpu, cuda, auto, or a target of an installed package.")]
TaskArgument = Annotated[Path, typer.Argument(help="The task file.")]


def choose_parameters(value: str | None) -> Any:
    """The value of --parameters, checked; None if it was not given."""
    return None if value is None else choose("--parameters", value, ("loaded", "as-built"))


def choose_other_shapes(value: str | None) -> Any:
    """The value of --other-shapes, checked; None if it was not given."""
    return None if value is None else choose("--other-shapes", value, ("raise", "reference"))


def choose_policy(value: str | None) -> Any:
    """The value of --policy, checked; None if it was not given."""
    return None if value is None else choose("--policy", value, ("fair", "open", "strict"))
