"""`foundry mcp`: the tools for a coding agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foundry.graph.doors.commands.options import RunsOption
from foundry.knowledge.errors import MissingTool
from foundry.tools.command_line import one_line_errors


@one_line_errors
def mcp(
    runs: RunsOption = Path("runs"),
    models: Annotated[
        bool, typer.Option("--models", help="Calls may start chat models, which may cost money.")
    ] = False,
) -> None:
    """Serve a coding agent over stdin and stdout: solve, verify, profile, trace, status, say, search_experience."""
    try:
        from foundry.graph.doors.mcp.server import serve
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("mcp"):
            raise
        raise MissingTool("foundry mcp needs the package mcp", "pip install 'foundry[mcp]'") from error
    serve(runs, models=models)
