"""`foundry agent fork` and `foundry agent compare`: a run goes on from any step otherwise, and what that brought."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from foundry.graph.doors.commands import model_flags
from foundry.graph.doors.commands.options import JsonOption, PlainOption, RunArgument, RunsOption, VerboseOption
from foundry.graph.doors.commands.solve import Display, conclude, drive, go_on
from foundry.tools.command_line import one_line_errors, print_json, say


@one_line_errors
def fork(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@STEP]",
            help="As in other commands; after @ a step (i0g4), a candidate (c17) or a node (decide); default: its end.",
        ),
    ],
    said: Annotated[list[str] | None, typer.Option("--say", help="A line to the experts; may be given again.")] = None,
    model: model_flags.ModelFlag = None,
    base_url: model_flags.BaseUrlFlag = None,
    api_key_env: model_flags.KeyFlag = None,
    price: model_flags.PriceFlag = None,
    evaluations: Annotated[int | None, typer.Option(min=1, help="Candidates to evaluate from there on.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Minutes of search from there on.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Model tokens from there on.")] = None,
    dollars: Annotated[float | None, typer.Option(min=0.0, help="Model cost from there on.")] = None,
    target_speedup: Annotated[float | None, typer.Option(min=0.0, help="Stop when proven this fast.")] = None,
    runs: RunsOption = Path("runs"),
    plain: PlainOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on from a run's end, or from just before a step, as a new run: more budget, other words, another model.

    foundry agent fork last --minutes 10 goes on with yesterday's run; fork last@c17 --say "@tiling avoid unroll 8"
    makes c17 again, otherwise."""
    from foundry.agents.models.settings import read_models
    from foundry.graph.history import fork as forking
    from foundry.graph.run.request import RunLimits
    from foundry.graph.run.run_directory import RunDirectory, find_run

    name, _, step = run.partition("@")
    models = None
    if model:
        models = read_models(model, {"base_url": base_url, "api_key_env": api_key_env, "price": price})
    limits = RunLimits(evaluations, minutes, tokens, dollars, target_speedup)
    change = forking.Change(said or (), models, limits)
    path = forking.fork(find_run(runs, name), "" if step == "end" else step, change)
    with closing(RunDirectory.inspect(path)) as opened:
        request = opened.request
    say(f"{path.name} goes on from {name}{f'@{step}' if step else ''}", err=True)
    summary = drive(lambda *given: go_on(path, *given), request, Display(as_json, plain, verbose), None)
    conclude(summary, request.task, as_json, 0.0)


@one_line_errors
def compare(
    one: RunArgument,
    other: Annotated[str, typer.Argument(help="Another run of the same task, for instance a fork of the first.")],
    runs: RunsOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Show where two runs parted, what was said otherwise, and what it brought."""
    from foundry.graph.history.comparison import compare_runs, lines_of
    from foundry.graph.run.run_directory import RunDirectory, find_run

    with (
        closing(RunDirectory.inspect(find_run(runs, one))) as first,
        closing(RunDirectory.inspect(find_run(runs, other))) as second,
    ):
        found = compare_runs(first, second)
    if as_json:
        print_json({**asdict(found), "gain": found.gain, "is_sure": found.is_sure})
    else:
        typer.echo("\n".join(lines_of(found)))
