"""`foundry agent solve` and `foundry agent resume`: a search begins, or goes on, and ends with an exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from foundry.agents.chat.options import MOST_IN_FLIGHT
from foundry.graph.commands import model_flags
from foundry.graph.commands.options import (
    JsonOption,
    PlainOption,
    RunArgument,
    RunsOption,
    StoreOption,
    TargetOption,
    choose_policy,
    choose_target,
)
from foundry.knowledge.errors import UsageError
from foundry.tools.command_line import choose, one_line_errors, print_json

if TYPE_CHECKING:
    from foundry.graph.run.events import Event
    from foundry.graph.run.opening import Asker
    from foundry.graph.run.request import Mechanism, PromptMode, SolveRequest
    from foundry.graph.run.summary import Summary

    Listener = Callable[[Event], None]
    OnFolder = Callable[[Path], None]
    Work = Callable[[Listener, asyncio.Event, Asker, OnFolder], Awaitable[Summary]]


@one_line_errors
def solve(
    task: Annotated[Path, typer.Argument(help="A KernelBench-style file: Model, get_inputs, get_init_inputs.")],
    target: TargetOption = "auto",
    effort: Annotated[str, typer.Option(help="bench (a minute), quick (3 minutes), standard or deep.")] = "quick",
    model: model_flags.ModelFlag = None,
    base_url: model_flags.BaseUrlFlag = None,
    provider: model_flags.ProviderFlag = None,
    api_key_env: model_flags.KeyFlag = None,
    price: model_flags.PriceFlag = None,
    answer_tokens: model_flags.AnswerTokensFlag = None,
    request_s: model_flags.RequestSecondsFlag = None,
    parallel: model_flags.ParallelFlag = None,
    temperature: model_flags.TemperatureFlag = None,
    reasoning_effort: model_flags.ReasoningFlag = None,
    tool_calls: model_flags.ToolCallsFlag = None,
    prompts: model_flags.PromptsFlag = None,
    record: model_flags.RecordFlag = None,
    recording: model_flags.ReplayFlag = None,
    ask_missing: model_flags.AskMissingFlag = False,
    seed: Annotated[int, typer.Option(help="Random seed: a run's decisions replay for it.")] = 0,
    islands: Annotated[
        int | None, typer.Option(min=1, max=64, help="Populations that search side by side; default: the effort's.")
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_IN_FLIGHT, help="Steps of an island at a time; default: 1, or what keeps models busy."
        ),
    ] = None,
    evaluations: Annotated[int | None, typer.Option(min=1, help="Budget: candidates to evaluate.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Budget: minutes of search.")] = None,
    finalists: Annotated[int | None, typer.Option(min=1, help="Proven at the end; default: the effort's.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Budget: model tokens.")] = None,
    dollars: Annotated[float | None, typer.Option(min=0.0, help="Budget: model cost; its price must be known.")] = None,
    calls: Annotated[int | None, typer.Option(min=1, help="Budget: requests to models.")] = None,
    target_speedup: Annotated[float | None, typer.Option(min=0.0, help="Stop when proven this fast.")] = None,
    min_speedup: Annotated[float, typer.Option(min=0.0, help="Exit 1 below this proven speedup.")] = 0.0,
    scale: Annotated[int | None, typer.Option(min=1, help="Sets the task's SCALE: about N times the work.")] = None,
    policy: Annotated[str | None, typer.Option(help="fair, open or strict; default: the task's.")] = None,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = True,
    gpus: Annotated[str, typer.Option(metavar="all|N|0,1", help="Which GPUs the islands share; default: one.")] = "",
    switched_on: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="PART,...",
            help="Parts of the search that are off by default: gradients, migration, credits; without a model also "
            "archive and roles.",
        ),
    ] = "",
    store: StoreOption = None,
    learn: Annotated[bool, typer.Option("--learn/--no-learn", help="Read and write the experience store.")] = True,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask before a paid model starts, the budget grows, the winner is exported.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Answer every question with yes.")] = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Say what models may cost and would be told first; ask and start nothing.")
    ] = False,
    runs: RunsOption = Path("runs"),
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search a fast, proven kernel for a task.

    To tell the experts what to do or to avoid: foundry agent chat last "@tiling avoid unroll 8" while it works, or
    instructions = "..." in a TOML file beside the task (README, "A task")."""
    from foundry.agents.chat.options import TapeOptions
    from foundry.agents.models.settings import find_file, read_in_flight, read_models
    from foundry.graph.run.request import EFFORTS, RunLimits, SolveRequest
    from foundry.tools.machine.device import see_gpus

    models = read_models(
        model,
        {
            "base_url": base_url,
            "provider": provider,
            "api_key_env": api_key_env,
            "price": price,
            "answer_tokens": answer_tokens,
            "request_seconds": request_s,
            "parallel_calls": parallel,
            "temperature": temperature,
            "reasoning_effort": reasoning_effort,
            "tool_calls": tool_calls,
        },
    )
    machine, plan = choose_target(target), choose("--effort", effort, tuple(EFFORTS))
    limits = RunLimits(evaluations, minutes, tokens, dollars, target_speedup, calls)
    tape = TapeOptions(model_flags.absolute(record), model_flags.absolute(recording), ask_missing)
    if tape != TapeOptions() and not models:
        raise UsageError("--record and --replay are about a chat model, but none is asked for", "add --model NAME")
    request = SolveRequest(
        *(str(task), machine, plan, seed, islands, limits, scale, choose_policy(policy), models),
        in_flight=read_in_flight(in_flight),
        store=store,
        learn=learn,
        runs=str(runs),
        finalists=finalists,
        gpus=see_gpus(gpus),
        prompts=_choose_prompts(prompts, has_model=bool(models), learns=learn),
        ask=ask,
        tape=tape,
        switched_on=switch_on(switched_on),
    )
    request = request if compiled else replace(request, rivals=())
    if models and not as_json and (file := find_file(Path.cwd())):
        typer.echo(f"models: as {file} says, where no flag and no variable says otherwise")
    if dry:
        _show_dry_run(request, as_json)
        return
    summary = drive(lambda *given: _solve(request, *given), request, as_json, plain, True if yes else None)
    conclude(summary, request.task, as_json, min_speedup)


def switch_on(names: str) -> tuple[Mechanism, ...]:
    """The parts of the search that the user wants although they are off by default ("gradients,credits")."""
    from foundry.graph.run.request import FOR_MODELS, OFF

    return tuple(choose("--with", name.strip(), (*OFF, *FOR_MODELS)) for name in names.split(",") if name.strip())


def _choose_prompts(flag: str | None, *, has_model: bool, learns: bool) -> PromptMode:
    """What the user wants of the experts' prompts; as shipped where no model thinks or nothing is kept."""
    from foundry.agents.models.settings import read_prompts
    from foundry.graph.run.request import PromptMode

    said, by_flag = read_prompts(flag)
    mode: PromptMode = choose("--prompts", said or "shipped", get_args(PromptMode))
    if mode == "shipped" or (has_model and learns):
        return mode
    if by_flag:
        lacks = "no chat model is asked for" if learns else "--no-learn leaves nothing to keep it in"
        raise UsageError(f"--prompts {mode} is about what chat models are told, and {lacks}")
    return "shipped"


def _show_dry_run(request: SolveRequest, as_json: bool) -> None:
    from foundry.graph.dry_run import dry_run
    from foundry.graph.run.opening import WarmParts

    parts = WarmParts()
    try:
        found = asyncio.run(dry_run(request, parts))
    finally:
        parts.close()
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo("\n".join(found.lines))


@one_line_errors
def resume(
    run: RunArgument,
    runs: RunsOption = Path("runs"),
    min_speedup: Annotated[float, typer.Option(min=0.0, help="Exit 1 below this proven speedup.")] = 0.0,
    answer: Annotated[
        bool | None, typer.Option("--yes/--no", help="Yes to all that the run asks; no to what it asks now.")
    ] = None,
    plain: PlainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted or killed, or that asks something.

    A run that has ended tells its end again; with more budget it goes on by foundry agent fork RUN --minutes 10."""
    from foundry.graph.run.run_directory import RunDirectory, find_run

    path = find_run(runs, run)
    opened = RunDirectory.inspect(path)
    request = opened.request
    opened.close()
    summary = drive(lambda *given: go_on(path, *given), request, as_json, plain, answer)
    conclude(summary, request.task, as_json, min_speedup)


async def _solve(
    request: SolveRequest, tell: Listener, stop: asyncio.Event, asker: Asker, on_folder: OnFolder
) -> Summary:
    from foundry.graph import solve as search

    return await search.solve(request, tell, stop=stop, asker=asker, on_folder=on_folder)


async def go_on(path: Path, tell: Listener, stop: asyncio.Event, asker: Asker, on_folder: OnFolder) -> Summary:
    from foundry.graph import solve as search

    on_folder(path)
    return await search.resume(path, tell, stop=stop, asker=asker)


def drive(work: Work, request: SolveRequest, as_json: bool, plain: bool, answer: bool | None) -> Summary:
    """Runs the search with its live view on a terminal, a line a generation elsewhere; Ctrl-C and SIGTERM stop it with
    its state kept. A chat model is introduced, with its price. `answer` is what flags say to the run's questions."""
    from contextlib import nullcontext

    from rich.console import Console

    from foundry.graph.live.plain import PlainLines
    from foundry.graph.live.scene import Scene
    from foundry.graph.live.watch import Beside, can_draw
    from foundry.graph.solve import silent, unseen
    from foundry.graph.views.questions import asker_of

    console = Console(stderr=True)
    view = Beside(console) if can_draw(console) and not as_json and not plain else None
    lines = PlainLines(Scene(request), lambda line: typer.echo(line, err=True))
    show = silent if as_json or view else lines.take
    introductions: list[str] = []

    def tell(event: Event) -> None:
        if (event.kind, event.name) == ("note", "model"):
            introductions.append(f"model: {event.data['text']}")
            if not view and not as_json:
                typer.echo(introductions.pop())
        show(event)

    async def run() -> Summary:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        asker = asker_of(answer, view.hidden if view else nullcontext)
        return await work(tell, stop, asker, view.begin if view else unseen if as_json else lines.remember)

    try:
        return asyncio.run(run())
    finally:
        if view:
            view.end()
            for line in introductions:
                typer.echo(line)


def conclude(summary: Summary, task_path: str, as_json: bool, min_speedup: float) -> None:
    from foundry.graph.report.write import PAGE
    from foundry.graph.views.ending import ending_lines

    if as_json:
        print_json(summary.to_json())
    else:
        page = Path(summary.run) / PAGE
        for line in ending_lines(summary, task_path, page if page.exists() else None):
            typer.echo(line)
    if summary.verdict == "interrupted":
        raise typer.Exit(130)
    if summary.verdict != "accepted" or (summary.speedup_ci95 or (0.0, 0.0))[0] < min_speedup:
        raise typer.Exit(1)
