"""Lists, shows and steers runs: `foundry agent runs`, `watch` and `chat`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from foundry.graph.doors.commands.options import JsonOption, PlainOption, RunArgument, RunsOption, VerboseOption
from foundry.tools.command_line import one_line_errors, print_json


@one_line_errors
def show_runs(runs: RunsOption = Path("runs"), as_json: JsonOption = False) -> None:
    """List the runs, newest first."""
    from foundry.graph.run.run_directory import list_runs
    from foundry.graph.run.summary import summarise
    from foundry.graph.show.words.answers import is_paused

    rows = []
    for run in list_runs(runs):
        summary = summarise(run)
        status = summary.verdict if summary.verdict in ("running", "interrupted", "failed") else "finished"
        origin = f"{run.origin.run}@{run.origin.step or 'end'}" if run.origin else None
        known = {
            "id": run.id,
            "created": run.get("created"),
            "status": "paused" if is_paused(run) else status,
            "forked_from": origin,
        }
        rows.append({**known, **summary.to_json()})
        run.close()
    if as_json:
        print_json(rows)
        return
    for row in rows:
        gain = f"{row['speedup']:.2f}x" if row["speedup"] else "-"
        why = f": {row['ending']}" if row["verdict"] == "failed" else ""
        fork = f"  (a fork of {row['forked_from']})" if row["forked_from"] else ""
        how = "paused" if row["status"] == "paused" else row["verdict"]
        typer.echo(f"{row['id']}  {row['task']}  {row['target']}  {gain}  {how}{why}{fork}")
    if not rows:
        typer.echo(f"no runs in {runs}")


@one_line_errors
def watch(
    run: RunArgument,
    runs: RunsOption = Path("runs"),
    plain: PlainOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show a run as it goes, from any terminal, with a line to talk to its experts; Ctrl-C only ends the watching."""
    import signal
    import sys

    from rich.console import Console

    from foundry.graph.run.run_directory import find_run
    from foundry.graph.show.terminal.watch import Window, can_draw, watch_plain

    path, console = find_run(runs, run), Console()
    if plain or verbose or not can_draw(console):
        watch_plain(path, typer.echo, verbose=verbose)
        return
    window = Window(console, path, typing=sys.stdin.isatty())
    signal.signal(signal.SIGTERM, lambda *_: window.leave())  # the terminal is given back as it was
    try:
        window.show(until_over=False)
    except KeyboardInterrupt:
        pass  # it was only watched
    finally:
        window.close()


@one_line_errors
def chat(
    run: RunArgument,
    words: Annotated[
        list[str] | None, typer.Argument(help="One line; without it you are asked for one after another.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for an expert to take it.")] = 0.0,
    runs: RunsOption = Path("runs"),
) -> None:
    """Steer the experts of a run or ask about it: "@tiling avoid unroll 8", "ranking", "why c17", "help".

    "ranking" says who won, "why c17" why a candidate lost, "status" how far a run is, "pause" and "stop" do so;
    "help" lists all that is understood."""
    from foundry.graph.run.opening import Parts
    from foundry.graph.run.run_directory import RunDirectory, find_run
    from foundry.graph.show.terminal.prompt import typed_lines
    from foundry.graph.show.words.conversation import Conversation, wait_for_acknowledgement

    opened = RunDirectory.inspect(find_run(runs, run))
    try:
        conversation = Conversation(opened, Parts())
        lines = [" ".join(words)] if words else typed_lines(conversation, opened.path)
        understood = True
        for line in lines:
            reply = conversation.say(line)
            typer.echo(reply.text)
            if reply.directive and wait:
                typer.echo(wait_for_acknowledgement(opened, reply.directive, wait))
            understood = reply.understood
        if words and not understood:
            raise typer.Exit(2)
    finally:
        opened.close()


@one_line_errors
def replay(
    run: RunArgument,
    recording: Annotated[
        Path | None,
        typer.Option("--replay", help="What --record wrote: models think again from it, not from the run's journal."),
    ] = None,
    runs: RunsOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Repeat the decisions of a finished run from its journal, without a machine or a model; exit 1 if they differ."""
    from foundry.graph.history import replay as replaying
    from foundry.graph.run.run_directory import find_run

    found = asyncio.run(replaying.replay(find_run(runs, run), tape=recording))
    if as_json:
        print_json({"exact": found.exact, **asdict(found)})
    else:
        typer.echo("\n".join([*found.differences, f"{found.decisions} decisions, {len(found.differences)} differ"]))
    raise typer.Exit(0 if found.exact else 1)
