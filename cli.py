"""The command line: each command by its name. Exit codes: 0 accepted, 1 nothing accepted, 2 bad input, 3 missing
environment, 4 not comparable, 130 interrupted with the state kept."""

from __future__ import annotations

import typer

from foundry.graph.bench.command import bench
from foundry.graph.bench.report_command import report
from foundry.graph.commands import knowledge
from foundry.graph.commands.doctor import doctor
from foundry.graph.commands.fork import compare, fork
from foundry.graph.commands.mcp import mcp
from foundry.graph.commands.runs import chat, replay, show_runs, watch
from foundry.graph.commands.serve import serve
from foundry.graph.commands.solve import resume, solve
from foundry.graph.commands.trace import show_trace
from foundry.graph.commands.verify import profile, verify
from foundry.tools.command_line import CommandLine
from foundry.tools.verify.tune_command import tune

app = CommandLine(
    help="Turn a slow PyTorch module into a fast, proven kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they show local variables, among them what the user keeps secret
)
app.command("bench")(bench)
app.command("tune")(tune)
app.command("doctor")(doctor)
app.command("verify")(verify)
app.command("profile")(profile)
app.command("mcp")(mcp)
app.command("serve")(serve)

agent = typer.Typer(help="Run the experts on a task; watch, steer and inspect a run.", no_args_is_help=True)
agent.command("solve")(solve)
agent.command("resume")(resume)
agent.command("fork")(fork)
agent.command("compare")(compare)
agent.command("runs")(show_runs)
agent.command("watch")(watch)
agent.command("trace")(show_trace)
agent.command("replay")(replay)
agent.command("chat")(chat)
agent.command("report")(report)
app.add_typer(agent, name="agent")

app.add_typer(knowledge.app, name="knowledge")


if __name__ == "__main__":
    app()
