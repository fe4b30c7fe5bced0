"""`foundry agent trace`: what a run did, as a tree, as lines that are asked for, with its prompts, for other tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foundry.graph.doors.commands.options import RunArgument, RunsOption
from foundry.knowledge.errors import MissingTool
from foundry.tools.command_line import choose, one_line_errors

if TYPE_CHECKING:
    from foundry.graph.run.events import Event, EventKind
    from foundry.graph.run.run_directory import RunDirectory
    from foundry.graph.show.trace.selection import Selection

STEPS = 60  # steps of each island that a tree shows


@one_line_errors
def show_trace(
    run: RunArgument,
    candidate: Annotated[str, typer.Option("--candidate", "-c", help="One candidate's story, e.g. c17.")] = "",
    diff: Annotated[str, typer.Option(help="What changed from the parent to this candidate.")] = "",
    depth: Annotated[int, typer.Option(min=1, max=9, help="1 steps, 2 nodes, 3 experts and tools.")] = 1,
    steps: Annotated[int, typer.Option(min=0, help="How many of each island, the latest; 0: all.")] = STEPS,
    expert: Annotated[list[str] | None, typer.Option(help="Only what this expert did; may be repeated.")] = None,
    island: Annotated[list[int] | None, typer.Option(help="Only this island; may be repeated.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only events of this kind; may be repeated.")] = None,
    failures: Annotated[bool, typer.Option("--failures", help="Only what failed, with the reason.")] = False,
    slowest: Annotated[int, typer.Option(min=0, metavar="N", help="The N longest.")] = 0,
    costliest: Annotated[int, typer.Option(min=0, metavar="N", help="The N dearest calls of chat models.")] = 0,
    prompts: Annotated[bool, typer.Option("--prompts", help="What chat models were told and answered.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Event by event, until the run ends.")] = False,
    export: Annotated[str, typer.Option(help="otel: OpenTelemetry spans as OTLP JSON.")] = "",
    out: Annotated[Path | None, typer.Option(help="Of --export: the file; default: standard output.")] = None,
    to: Annotated[str, typer.Option(metavar="URL", help="Of --export: a collector to send them to.")] = "",
    runs: RunsOption = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Every event as a line of JSON.")] = False,
) -> None:
    """Show what a run did: nodes, experts and tool calls with their times."""
    from foundry.graph.run.run_directory import RunDirectory, find_run
    from foundry.graph.show.trace.selection import Selection

    kinds = tuple(_choose_kind(word) for word in kind or ())
    picked = Selection(
        experts=tuple(expert or ()),
        islands=tuple(island or ()),
        kinds=kinds,
        failures=failures,
        slowest=slowest,
        costliest=costliest,
    )
    path = find_run(runs, run)
    if follow:
        _follow(path, picked, as_json)
        return
    opened = RunDirectory.inspect(path)
    try:
        if diff or (candidate and not (picked or prompts or as_json or export)):
            _tell_candidate(opened, candidate, diff)
        elif export:
            events = _select(opened, replace(picked, candidate=candidate))
            form = choose("--export", export, ("otel",))
            _export(opened, events, form, out=out, to=to, prompts=prompts)
        else:
            _show(opened, replace(picked, candidate=candidate), depth, steps, prompts=prompts, as_json=as_json)
    finally:
        opened.close()


def _tell_candidate(run: RunDirectory, candidate: str, child: str) -> None:
    """Prints the candidate's story, or with `child` what changed from its parent to it."""
    from foundry.graph.show.view import RunView
    from foundry.graph.show.words.candidate import diff, story

    typer.echo("\n".join(diff(run, child) if child else story(RunView(run), candidate, details=True)))


def _select(run: RunDirectory, wanted: Selection) -> list[Event]:
    """The run's events that are wanted; all without a selection."""
    from foundry.graph.run.events import EventLog

    events = EventLog(run.database, reading=True).read()
    return wanted.of_run(run).select(events) if wanted else events


def _show(run: RunDirectory, wanted: Selection, depth: int, steps: int, *, prompts: bool, as_json: bool) -> None:
    """Prints the events as prompts, JSON or lines; without any wish, the tree."""
    if not (prompts or as_json or wanted):
        _show_tree(run, depth, steps)
        return
    events = _select(run, wanted)
    if prompts:
        _show_prompts(run, events)
    elif as_json:
        typer.echo("\n".join(json.dumps(asdict(event)) for event in events))
    else:
        _show_lines(run, events)


def _choose_kind(word: str) -> EventKind:
    """The value of --kind, checked."""
    from foundry.graph.show.trace.selection import KINDS

    found: EventKind = choose("--kind", word, KINDS)
    return found


def _follow(path: Path, wanted: Selection, as_json: bool) -> None:
    """Prints each wanted event when it is over, as a line or as JSON."""
    from foundry.graph.show.trace.follow import follow
    from foundry.graph.show.trace.selection import line_of

    began: list[float] = []

    def tell(event: Event) -> None:
        """Prints an event as it comes."""
        began.append(event.started)
        typer.echo(json.dumps(asdict(event)) if as_json else line_of(event, began[0]))

    follow(path, wanted, tell)


def _show_prompts(run: RunDirectory, events: Sequence[Event]) -> None:
    """Prints the chat models' calls among the events."""
    from foundry.graph.run.events import EventLog
    from foundry.graph.show.trace.prompts import is_call, prompt_lines

    if not any(map(is_call, events)):
        typer.echo("no call of a chat model is among these: the playbook asks nobody")
        return
    for line in prompt_lines(run, events, EventLog(run.database, reading=True).began()):
        typer.echo(line)


def _show_lines(run: RunDirectory, events: Sequence[Event]) -> None:
    """Prints the events, one a line."""
    from foundry.graph.run.events import EventLog
    from foundry.graph.show.trace.selection import line_of

    began = EventLog(run.database, reading=True).began()
    typer.echo("\n".join(line_of(event, began) for event in events) or "no event is like that")


def _show_tree(run: RunDirectory, depth: int, steps: int) -> None:
    """Prints the run as a tree, and its wall time."""
    from rich.console import Console

    from foundry.graph.show.trace import tree
    from foundry.graph.show.view import RunView

    Console(soft_wrap=True).print(tree.tree(run, depth=depth, latest=steps))
    summary = RunView(run).summary
    typer.echo(f"{summary.wall_s:.0f} s ({summary.time_words})")


def _export(run: RunDirectory, events: Sequence[Event], form: str, *, out: Path | None, to: str, prompts: bool) -> None:
    """Writes the events as OpenTelemetry spans: to a collector, a file or standard output. Raises MissingTool."""
    try:
        from foundry.graph.show.trace.otel import in_json, send, spans_of
    except ImportError as error:
        raise MissingTool("OpenTelemetry's exporters are not installed", "pip install 'foundry[otel]'") from error
    spans = spans_of(run, events, prompts=prompts)
    if to:
        send(spans, to)
        typer.echo(f"{len(events)} events of {run.id} sent to {to}", err=True)
    elif out:
        out.write_text(in_json(spans) + "\n")
        typer.echo(out, err=True)
    else:
        typer.echo(in_json(spans))
