"""`foundry agent solve` and `foundry agent resume`: a search begins, or goes on, and ends with an exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from foundry.graph.doors.commands.grouped import grouped
from foundry.graph.doors.commands.model_flags import ModelFlags
from foundry.graph.doors.commands.options import (
    JsonOption,
    PlainOption,
    RunArgument,
    RunsOption,
    TargetOption,
    VerboseOption,
    choose_other_shapes,
    choose_policy,
)
from foundry.graph.doors.commands.search_flags import SearchFlags
from foundry.knowledge.errors import UsageError
from foundry.tools.command_line import choose, choose_target, one_line_errors, print_json, say
from foundry.tools.words import to_paste

if TYPE_CHECKING:
    from foundry.graph.run.events import Event
    from foundry.graph.run.opening import Asker
    from foundry.graph.run.request import SolveRequest, StrategyName
    from foundry.graph.run.summary import Summary

    Listener = Callable[[Event], None]
    OnFolder = Callable[[Path], None]
    Work = Callable[[Listener, asyncio.Event, Asker, OnFolder], Awaitable[Summary]]


@one_line_errors
@grouped
def solve(
    task: Annotated[Path, typer.Argument(help="A KernelBench-style file: Model, get_inputs, get_init_inputs.")],
    *,
    target: TargetOption = "auto",
    effort: Annotated[str, typer.Option(help="bench (a minute), quick (3 minutes), standard or deep.")] = "quick",
    chat: ModelFlags,
    search: SearchFlags,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask before a paid model starts, the budget grows, the winner is exported.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Answer every question with yes.")] = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Say what models may cost and would be told first; ask and start nothing.")
    ] = False,
    runs: RunsOption = Path("runs"),
    plain: PlainOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search a fast, proven kernel for a task.

    To tell the experts what to do or to avoid: foundry agent chat last "@tiling avoid unroll 8" while it works, or
    instructions = "..." in a TOML file beside the task (docs/tasks.md)."""
    from foundry.agents.models.settings import find_file

    request = replace(_read_request(str(task), target, effort, chat, search), ask=ask, runs=str(runs))
    if request.models and not as_json and (file := find_file(Path.cwd())):
        say(f"models: as {file} says, where no flag and no variable says otherwise")
    if dry:
        _show_dry_run(request, as_json)
        return
    display = Display(as_json, plain, verbose)
    summary = drive(lambda *given: _solve(request, *given), request, display, True if yes else None)
    conclude(summary, request.task, as_json, search.min_speedup)


def _read_request(task: str, target: str, effort: str, chat: ModelFlags, search: SearchFlags) -> SolveRequest:
    """The request that the options make. Raises UsageError in one line if they contradict each other."""
    from foundry.agents.chat.options import TapeOptions
    from foundry.agents.models.settings import read_models
    from foundry.graph.run.request import EFFORTS, SolveRequest
    from foundry.tools.targets.cuda.describe import see_gpus

    models = read_models(chat.model, chat.options)
    machine, plan = choose_target(target), choose("--effort", effort, tuple(EFFORTS))
    if chat.tape != TapeOptions() and not models:
        raise UsageError("--record and --replay are about a chat model, but none is asked for", "add --model NAME")
    request = SolveRequest(
        task=task,
        target=machine,
        effort=plan,
        seed=search.seed,
        islands=search.islands,
        limits=search.limits,
        scale=search.scale,
        policy=choose_policy(search.policy),
        models=models,
        store=search.store,
        learn=search.learn,
        finalists=search.finalists,
        gpus=see_gpus(search.gpus),
        tape=chat.tape,
        strategies=choose_strategies(search.strategy or ()),
        model_class=search.model_class,
        other_shapes=choose_other_shapes(search.other_shapes),
    )
    return request if search.compiled else replace(request, rivals=())


def choose_strategies(names: Sequence[str]) -> tuple[StrategyName, ...]:
    """The search strategies that the user asks for, each once; raises UsageError for one that is not there."""
    from foundry.graph.run.request import StrategyName

    return tuple(dict.fromkeys(choose("--strategy", name, get_args(StrategyName)) for name in names))


def _show_dry_run(request: SolveRequest, as_json: bool) -> None:
    """Prints the dry run of a request, as lines or as JSON."""
    from foundry.graph.doors.commands.dry_run import dry_run
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
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted or killed, or that asks something.

    A run that has ended tells its end again; with more budget it goes on by foundry agent fork RUN --minutes 10."""
    from foundry.graph.run.run_directory import RunDirectory, find_run

    path = find_run(runs, run)
    opened = RunDirectory.inspect(path)
    request = opened.request
    opened.close()
    summary = drive(lambda *given: go_on(path, *given), request, Display(as_json, plain, verbose), answer)
    conclude(summary, request.task, as_json, min_speedup)


async def _solve(
    request: SolveRequest, tell: Listener, stop: asyncio.Event, asker: Asker, on_folder: OnFolder
) -> Summary:
    """Runs a new search and returns its summary."""
    from foundry.graph import solve as search

    return await search.solve(request, tell, stop=stop, asker=asker, on_folder=on_folder)


async def go_on(path: Path, tell: Listener, stop: asyncio.Event, asker: Asker, on_folder: OnFolder) -> Summary:
    """Resumes a run and returns its summary; says first why it stays paused, if it does."""
    from foundry.graph import solve as search

    if line := _why_it_rests(path):
        say(line, err=True)
    on_folder(path)
    return await search.resume(path, tell, stop=stop, asker=asker)


def _why_it_rests(path: Path) -> str:
    """The line that tells a user that a resumed run stays paused until its directive is taken back; "" otherwise."""
    from foundry.graph.run.inbox import find_wanted_state
    from foundry.graph.run.run_directory import RunDirectory
    from foundry.graph.run.summary import kept_state

    run = RunDirectory.inspect(path)
    try:
        wanted, number = find_wanted_state(run.inbox.read())
        if wanted != "pause" or kept_state(run) == "finished":
            return ""
        again = to_paste("foundry", "agent", "chat", path, "resume")
        return f"paused by d{number}: the search rests until somebody says {again}"
    finally:
        run.close()


@dataclass(frozen=True)
class Display:
    """Flags of what is shown of a search: only JSON at its end, plain lines, or these with whole recipes."""

    as_json: bool = False
    plain: bool = False
    verbose: bool = False


def drive(work: Work, request: SolveRequest, display: Display, answer: bool | None) -> Summary:
    """Runs the search with its live view on a terminal, a line an evaluation elsewhere; Ctrl-C and SIGTERM stop it with
    its state kept. A chat model is introduced, with its price. `answer` is what flags say to the run's questions."""
    from contextlib import nullcontext

    from rich.console import Console

    from foundry.graph.show.terminal.plain import PlainLines
    from foundry.graph.show.terminal.scene import Scene
    from foundry.graph.show.terminal.watch import Beside, can_draw
    from foundry.graph.show.words.questions import asker_of
    from foundry.graph.solve import silent, unseen

    console = Console(stderr=True)
    view = Beside(console) if can_draw(console) and display == Display() else None
    lines = PlainLines(Scene(request), lambda line: say(line, err=True))
    show = silent if display.as_json or view else lines.take
    introductions: list[str] = []

    def tell(event: Event) -> None:
        """Shows an event; says which model thinks at once if nothing else is shown."""
        if (event.kind, event.name) == ("note", "model"):
            introductions.append(f"model: {event.data['text']}")
            if not view and not display.as_json:
                say(introductions.pop())
        show(event)

    def begin(path: Path) -> None:
        lines.remember(path, verbose=display.verbose)

    async def run() -> Summary:
        """Runs the work; SIGINT and SIGTERM ask it to stop."""
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        asker = asker_of(answer, view.hidden if view else nullcontext)
        return await work(tell, stop, asker, view.begin if view else unseen if display.as_json else begin)

    try:
        return asyncio.run(run())
    finally:
        lines.close()
        if view:
            view.end()
            for line in introductions:
                say(line)


def conclude(summary: Summary, task_path: str, as_json: bool, min_speedup: float) -> None:
    """Prints the result. Exits with 130 if interrupted, with 1 if nothing is accepted or below `min_speedup`."""
    from foundry.graph.show.page.write import PAGE
    from foundry.graph.show.words.ending import ending_lines

    if as_json:
        print_json(summary.to_json())
    else:
        page = Path(summary.run) / PAGE
        for line in ending_lines(summary, task_path, page if page.exists() else None):
            say(line)
    if summary.verdict == "interrupted":
        raise typer.Exit(130)
    if summary.verdict != "accepted" or (summary.speedup_ci95 or (0.0, 0.0))[0] < min_speedup:
        raise typer.Exit(1)
