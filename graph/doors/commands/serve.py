"""`foundry serve`: the pages of runs, live on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foundry.graph.doors.commands.options import RunsOption
from foundry.knowledge.errors import MissingTool
from foundry.tools.command_line import one_line_errors


@one_line_errors
def serve(
    runs: RunsOption = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of 127.0.0.1; 0: any that is free.")] = 8765,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show runs, and let nobody say anything.")] = False,
) -> None:
    """Show the pages of runs in a browser of this machine, live while they work; open the address that it prints."""
    try:
        from foundry.graph.doors.serve.app import serve as listen
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise MissingTool("foundry serve needs starlette and uvicorn", "pip install 'foundry[serve]'") from error
    if not runs.is_dir():
        runs.mkdir(parents=True)
    listen(runs, port, writing=not read_only, tell=lambda address: typer.echo(f"{address}\nCtrl-C ends it"))
