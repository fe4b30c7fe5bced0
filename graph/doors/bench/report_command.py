"""`foundry agent report`: the page of a run or of a bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foundry.graph.doors.commands.options import RunsOption
from foundry.tools.command_line import one_line_errors


@one_line_errors
def report(
    run: Annotated[str, typer.Argument(help='A run (its folder, the start of its id, "last") or a bench\'s folder.')],
    out: Annotated[Path | None, typer.Option(help="Where to write it; default: report.html in the folder.")] = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Write the page of a run or of a bench: one HTML file that opens offline. A run writes its own at its end."""
    from foundry.graph.doors.bench.page import write_page_again
    from foundry.graph.doors.bench.results import RESULTS
    from foundry.graph.run.run_directory import RunDirectory, find_run
    from foundry.graph.show.page.write import write_report

    if (Path(run) / RESULTS).is_file():
        typer.echo(write_page_again(Path(run), out))
        return
    opened = RunDirectory.inspect(find_run(runs, run))
    try:
        typer.echo(write_report(opened, out))
    finally:
        opened.close()
