"""The command line: each command by its name. Exit codes: 0 accepted, 1 nothing accepted, 2 bad input, 3 missing
environment, 4 not comparable, 130 interrupted with the state kept."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from foundry.graph.doors.bench.command import bench
from foundry.graph.doors.bench.report_command import report
from foundry.graph.doors.commands import knowledge
from foundry.graph.doors.commands.doctor import doctor
from foundry.graph.doors.commands.fork import compare, fork
from foundry.graph.doors.commands.mcp import mcp
from foundry.graph.doors.commands.runs import chat, replay, show_runs, watch
from foundry.graph.doors.commands.serve import serve
from foundry.graph.doors.commands.solve import resume, solve
from foundry.graph.doors.commands.trace import show_trace
from foundry.graph.doors.commands.verify import profile, verify
from foundry.tools.command_line import CommandLine, GroupsFirst
from foundry.tools.verify.tune_command import tune

app = CommandLine(
    cls=GroupsFirst,
    help="Turn a slow PyTorch module into a fast, proven kernel: foundry agent solve TASK.",
    epilog="Exit codes: 0 accepted or confirmed, 1 not, 2 bad input, 3 something is missing here, 4 not comparable, "
    "130 interrupted with the state kept.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they show local variables, among them what the user keeps secret
)


def show_version(asked: bool) -> None:
    """Prints the version and ends the program, if asked for it."""
    if asked:
        typer.echo(f"foundry {version('foundry')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `foundry` itself."""


agent = typer.Typer(help="Run the experts on a task; watch, steer and inspect a run.", no_args_is_help=True)
agent.command("solve")(solve)
agent.command("resume")(resume)
agent.command("fork")(fork)
agent.command("runs")(show_runs)
agent.command("watch")(watch)
agent.command("chat")(chat)
agent.command("report")(report)
agent.command("trace")(show_trace)
agent.command("compare")(compare)
agent.command("replay")(replay)

app.add_typer(agent, name="agent")
app.command("verify")(verify)
app.command("profile")(profile)
app.command("tune")(tune)
app.command("bench")(bench)
app.add_typer(knowledge.app, name="knowledge")
app.command("doctor")(doctor)
app.command("serve")(serve)
app.command("mcp")(mcp)


if __name__ == "__main__":
    app()
