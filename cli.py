"""The command line: arguments in, exit code out. Exit codes: 0 accepted, 1 nothing accepted, 2 bad input, 3 missing
environment, 4 not comparable, 130 interrupted with the state kept."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundry.graph.bench.command import bench
from foundry.graph.run import chat_flags
from foundry.tools.command_line import CommandLine, fail, one_line_errors, print_json
from foundry.tools.verify.tune_command import tune

if TYPE_CHECKING:
    from foundry.graph.run.events import Event
    from foundry.graph.run.opening import Asker
    from foundry.graph.run.request import SolveRequest
    from foundry.graph.run.summary import Summary

    Listener = Callable[[Event], None]
    Work = Callable[[Listener, asyncio.Event, Asker], Awaitable[Summary]]

app = CommandLine(
    help="Turn a slow PyTorch module into a fast, proven kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they show local variables, among them what the user keeps secret
)
agent_app = typer.Typer(help="Run the experts on a task; watch, steer and inspect a run.", no_args_is_help=True)
knowledge_app = typer.Typer(help="What earlier runs learnt.", no_args_is_help=True)
app.add_typer(agent_app, name="agent")
app.add_typer(knowledge_app, name="knowledge")
app.command("bench")(bench)
app.command("tune")(tune)

StoreOption = Annotated[str | None, typer.Option("--store", help="Folder or Chroma server URL of the store.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


# ---------------------------------------------------------------- doctor


@app.command()
@one_line_errors
def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine can do, and the one command that would let it do more."""
    from foundry.tools.machine.doctor import examine

    findings = examine()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        marks = {"ok": "ok     ", "limited": "limited", "missing": "missing"}
        for finding in findings:
            typer.echo(f"{marks[finding.state]}  {finding.what}: {finding.detail}")
            if finding.climb:
                typer.echo(f"         -> {finding.climb}")
    if any(finding.needed and finding.state == "missing" for finding in findings):
        raise typer.Exit(3)


# ---------------------------------------------------------------- knowledge


def _record_line(record: Any) -> str:
    child = f"{record.child_speedup:.2f}x" if record.child_speedup else record.outcome
    lift = f" ({record.lift:.2f} of its parent)" if record.lift else ""
    best = " best of its run" if record.is_run_best else ""
    return f"x{record.id}  {record.task}  {record.target}  {record.move}  {child}{lift}{best}"


@knowledge_app.command("list")
@one_line_errors
def knowledge_list(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 30,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List lessons, newest first."""
    with _opened(store) as opened:
        records = opened.newest(limit)
        if as_json:
            from foundry.knowledge.codec import to_plain

            print_json([to_plain(record) for record in records])
            return
        for record in records:
            typer.echo(_record_line(record))
        if not records:
            typer.echo("the store is empty: it fills as runs learn")


@knowledge_app.command("search")
@one_line_errors
def knowledge_search(
    text: str,
    target: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    limit: Annotated[int, typer.Option(min=1)] = 10,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find lessons near a text: operators, a limiter, a move."""
    with _opened(store) as opened:
        found = opened.search(text, target, limit)
        if as_json:
            from foundry.knowledge.codec import to_plain

            print_json([{"similarity": near, "record": to_plain(record)} for record, near in found])
            return
        for record, near in found:
            typer.echo(f"{near:.2f}  {_record_line(record)}")


@knowledge_app.command("show")
@one_line_errors
def knowledge_show(record_id: str, store: StoreOption = None) -> None:
    """Show one lesson whole, by the start of its id."""
    with _opened(store) as opened:
        from foundry.knowledge.codec import to_plain

        typer.echo(json.dumps(to_plain(opened.show(record_id)), indent=2))


@knowledge_app.command("export")
@one_line_errors
def knowledge_export(path: Path, store: StoreOption = None) -> None:
    """Write every lesson as a line of JSON."""
    with _opened(store) as opened:
        typer.echo(f"{opened.export(path)} lessons written to {path}")


@knowledge_app.command("import")
@one_line_errors
def knowledge_import(path: Path, store: StoreOption = None) -> None:
    """Add the lessons of an exported file."""
    with _opened(store) as opened:
        typer.echo(f"{opened.import_(path)} new lessons imported from {path}")


@knowledge_app.command("forget")
@one_line_errors
def knowledge_forget(
    record_ids: list[str],
    reason: Annotated[str, typer.Option(help="Kept beside the forgotten ids.")] = "user",
    store: StoreOption = None,
) -> None:
    """Forget lessons by id: they are never recalled again."""
    with _opened(store) as opened:
        typer.echo(f"{opened.forget(record_ids, reason)} lessons forgotten")


@knowledge_app.command("reindex")
@one_line_errors
def knowledge_reindex(store: StoreOption = None) -> None:
    """Rebuild the Chroma index from the journal."""
    with _opened(store) as opened:
        typer.echo(f"{opened.reindex()} lessons indexed ({opened.index_kind})")


def _opened(store: str | None) -> Any:
    from contextlib import closing

    from foundry.knowledge.experience.store import ExperienceStore

    opened = ExperienceStore.open(store)
    if opened.note:
        typer.echo(f"note: {opened.note}", err=True)
    return closing(opened)


# ---------------------------------------------------------------- agent


RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds run directories.")]


@agent_app.command("solve")
@one_line_errors
def agent_solve(
    task: Annotated[Path, typer.Argument(help="A KernelBench-style file: Model, get_inputs, get_init_inputs.")],
    target: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    effort: Annotated[str, typer.Option(help="bench (a minute), quick (3 minutes), standard or deep.")] = "quick",
    model: chat_flags.ModelFlag = None,
    base_url: chat_flags.BaseUrlFlag = None,
    api_key_env: chat_flags.KeyFlag = None,
    price: chat_flags.PriceFlag = None,
    answer_tokens: chat_flags.AnswerTokensFlag = None,
    request_s: chat_flags.RequestSecondsFlag = None,
    parallel: chat_flags.ParallelFlag = None,
    temperature: chat_flags.TemperatureFlag = None,
    reasoning_effort: chat_flags.ReasoningFlag = None,
    tool_calls: chat_flags.ToolCallsFlag = None,
    seed: Annotated[int, typer.Option(help="Random seed: a run's decisions replay for it.")] = 0,
    islands: Annotated[int | None, typer.Option(min=1, max=64)] = None,
    evaluations: Annotated[int | None, typer.Option(min=1, help="Budget: candidates to evaluate.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Budget: minutes of search.")] = None,
    finalists: Annotated[int | None, typer.Option(min=1, help="Proven at the end; default: the effort's.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Budget: model tokens.")] = None,
    dollars: Annotated[float | None, typer.Option(min=0.0, help="Budget: model cost; its price must be known.")] = None,
    target_speedup: Annotated[float | None, typer.Option(min=0.0, help="Stop when proven this fast.")] = None,
    min_speedup: Annotated[float, typer.Option(min=0.0, help="Exit 1 below this proven speedup.")] = 0.0,
    scale: Annotated[int | None, typer.Option(min=1, help="Sets the task's SCALE: about N times the work.")] = None,
    policy: Annotated[str | None, typer.Option(help="fair, open or strict; default: the task's.")] = None,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = True,
    gpus: Annotated[str, typer.Option(metavar="all|N|0,1", help="Which GPUs the islands share; default: one.")] = "",
    store: StoreOption = None,
    learn: Annotated[bool, typer.Option("--learn/--no-learn", help="Read and write the experience store.")] = True,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask before a paid model starts, the budget grows, the winner is exported.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Answer every question with yes.")] = False,
    runs: RunsOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Search a fast, proven kernel for a task."""
    from foundry.graph.run.request import EFFORTS, RunLimits, SolveRequest
    from foundry.tools.machine.device import see_gpus

    chat = chat_flags.chat_options(
        model,
        base_url,
        api_key_env,
        price,
        answer_tokens,
        request_s,
        parallel,
        temperature,
        reasoning_effort,
        tool_calls,
    )
    machine, plan = _choice("--target", target, ("cpu", "cuda", "auto")), _choice("--effort", effort, tuple(EFFORTS))
    limits = RunLimits(evaluations, minutes, tokens, dollars, target_speedup)
    request = SolveRequest(
        str(task), machine, plan, seed, islands, limits, scale, _policy(policy), model, base_url, chat
    )
    request = replace(request, store=store, learn=learn, runs=str(runs), finalists=finalists, gpus=see_gpus(gpus))
    request = replace(request, rivals=request.rivals if compiled else (), ask=ask)
    summary = _drive(lambda *given: _solve(request, *given), request, as_json, True if yes else None)
    _conclude(summary, request.task, as_json, min_speedup)


@agent_app.command("resume")
@one_line_errors
def agent_resume(
    run: Annotated[str, typer.Argument(help='A run: its folder, the start of its id, or "last".')],
    runs: RunsOption = Path("runs"),
    min_speedup: Annotated[float, typer.Option(min=0.0)] = 0.0,
    answer: Annotated[
        bool | None, typer.Option("--yes/--no", help="Yes to all that the run asks; no to what it asks now.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted or killed, or that asks something."""
    from foundry.graph.run.run_directory import RunDirectory, find_run

    path = find_run(runs, run)
    opened = RunDirectory.inspect(path)
    request = opened.request
    opened.close()
    summary = _drive(lambda *given: _resume(path, *given), request, as_json, answer)
    _conclude(summary, request.task, as_json, min_speedup)


async def _solve(request: SolveRequest, tell: Listener, stop: asyncio.Event, asker: Asker) -> Summary:
    from foundry.graph.solve import solve

    return await solve(request, tell, stop=stop, asker=asker)


async def _resume(path: Path, tell: Listener, stop: asyncio.Event, asker: Asker) -> Summary:
    from foundry.graph.solve import resume

    return await resume(path, tell, stop=stop, asker=asker)


def _drive(work: Work, request: SolveRequest, as_json: bool, answer: bool | None) -> Summary:
    """Runs the search with live progress on a terminal; Ctrl-C and SIGTERM stop it with its state kept. A chat model
    is introduced, with its price, when the run begins. `answer` is what flags say to the run's questions."""
    from contextlib import ExitStack, nullcontext

    from rich.console import Console

    from foundry.graph.solve import silent
    from foundry.graph.views.progress import Progress
    from foundry.graph.views.questions import asker_of

    console = Console(stderr=True)
    with ExitStack() as stack:
        show: Listener = silent
        asker = asker_of(answer, nullcontext)
        if console.is_terminal and not as_json:
            show = progress = stack.enter_context(Progress(console, request))
            asker = asker_of(answer, progress.hidden)

        def tell(event: Event) -> None:
            if not as_json and (event.kind, event.name) == ("note", "model"):
                typer.echo(f"model: {event.data['text']}")
            show(event)

        async def run() -> Summary:
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            return await work(tell, stop, asker)

        return asyncio.run(run())


def _conclude(summary: Summary, task_path: str, as_json: bool, min_speedup: float) -> None:
    from foundry.graph.views.ending import ending_lines

    if as_json:
        print_json(summary.to_json())
    else:
        for line in ending_lines(summary, task_path):
            typer.echo(line)
    if summary.verdict == "interrupted":
        raise typer.Exit(130)
    if summary.verdict != "accepted" or (summary.speedup_ci95 or (0.0, 0.0))[0] < min_speedup:
        raise typer.Exit(1)


@agent_app.command("runs")
@one_line_errors
def agent_runs(runs: RunsOption = Path("runs"), as_json: JsonOption = False) -> None:
    """List the runs, newest first."""
    from foundry.graph.run.run_directory import list_runs
    from foundry.graph.run.summary import summarise

    rows = []
    for run in list_runs(runs):
        summary = summarise(run)
        status = summary.verdict if summary.verdict in ("running", "interrupted", "failed") else "finished"
        rows.append({"id": run.id, "created": run.get("created"), "status": status, **summary.to_json()})
        run.close()
    if as_json:
        print_json(rows)
        return
    for row in rows:
        gain = f"{row['speedup']:.2f}x" if row["speedup"] else "-"
        why = f": {row['ending']}" if row["verdict"] == "failed" else ""
        typer.echo(f"{row['id']}  {row['task']}  {row['target']}  {gain}  {row['verdict']}{why}")
    if not rows:
        typer.echo(f"no runs in {runs}")


@agent_app.command("trace")
@one_line_errors
def agent_trace(
    run: Annotated[str, typer.Argument(help='A run: its folder, the start of its id, or "last".')],
    candidate: Annotated[str, typer.Option("--candidate", "-c", help="One candidate's story, e.g. c17.")] = "",
    diff: Annotated[str, typer.Option(help="What changed from the parent to this candidate.")] = "",
    depth: Annotated[int, typer.Option(min=1, max=9, help="1 steps, 2 nodes, 3 experts and tools.")] = 1,
    runs: RunsOption = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Every event as a line of JSON.")] = False,
) -> None:
    """Show what a run did: nodes, experts and tool calls with their times."""
    from rich.console import Console

    from foundry.graph.run.events import EventLog
    from foundry.graph.run.run_directory import RunDirectory, find_run
    from foundry.graph.views import trace

    opened = RunDirectory.inspect(find_run(runs, run))
    try:
        if candidate or diff:
            lines = trace.story(opened, candidate) if candidate else trace.diff(opened, diff)
            typer.echo("\n".join(lines))
            return
        log = EventLog(opened.database, reading=True)
        events = log.read()
        if as_json:
            for event in events:
                typer.echo(json.dumps(asdict(event)))
            return
        Console(soft_wrap=True).print(trace.tree(opened, events, depth=depth))
        typer.echo("\n".join(trace.split_lines(opened, events, log.elapsed_s())))
    finally:
        opened.close()


@agent_app.command("chat")
@one_line_errors
def agent_chat(
    run: Annotated[str, typer.Argument(help='A run: its folder, the start of its id, or "last".')],
    words: Annotated[list[str] | None, typer.Argument(help="One line; without it, lines are read until EOF.")] = None,
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for an expert to take it.")] = 0.0,
    runs: RunsOption = Path("runs"),
) -> None:
    """Steer the experts of a run, or ask about it: "@tiling block 256", "pause", "why c17", "status"."""
    from foundry.graph.run.run_directory import RunDirectory, find_run
    from foundry.graph.views import conversation

    opened = RunDirectory.inspect(find_run(runs, run))
    try:
        lines = [" ".join(words)] if words else conversation.typed_lines()
        understood = True
        for line in lines:
            reply = conversation.say(opened, line)
            typer.echo(reply.text)
            if reply.directive and wait:
                typer.echo(conversation.wait_for_acknowledgement(opened, reply.directive, wait))
            understood = reply.understood
        if words and not understood:
            raise typer.Exit(2)
    finally:
        opened.close()


# ---------------------------------------------------------------- verify


def _show_schema(wanted: bool) -> None:
    if wanted:
        from foundry.tools.verify.receipt import receipt_schema

        typer.echo(json.dumps(receipt_schema(), indent=2))
        raise typer.Exit()


@app.command()
@one_line_errors
def verify(
    task: Annotated[Path, typer.Argument(help="The task file.")],
    candidate: Annotated[Path | None, typer.Argument(help="A file with class ModelNew, ours or not.")] = None,
    receipt: Annotated[Path | None, typer.Option(help="Compare with what this receipt claims.")] = None,
    target: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    policy: Annotated[str | None, typer.Option(help="fair, open or strict; default: the task's.")] = None,
    scale: Annotated[int | None, typer.Option(min=1, help="Sets the task's SCALE.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63, help="Of the hidden inputs; default: fresh.")] = None,
    min_speedup: Annotated[float, typer.Option(min=0.0, help="Exit 1 unless proven this fast.")] = 0.0,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = False,
    write_receipt: Annotated[Path | None, typer.Option(help="Write the receipt of an accepted kernel.")] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Test the grader: faults planted into a correct kernel must be caught.")
    ] = False,
    faults: Annotated[int, typer.Option(min=1, help="Self-test: how many faults; --seed chooses which.")] = 32,
    min_caught: Annotated[float, typer.Option(min=0.0, max=1.0, help="Self-test: exit 1 below this share.")] = 0.98,
    as_json: JsonOption = False,
    schema: Annotated[
        bool, typer.Option("--schema", is_eager=True, callback=_show_schema, help="Print receipt.json's JSON Schema.")
    ] = False,
) -> None:
    """Judge one candidate: build, correctness, audit, timing; exit 0 accepted, 1 not, 2 bad input, 4 not comparable."""
    from foundry.tools.verify.command import VerifyRequest, run
    from foundry.tools.verify.verdict_lines import verdict_lines

    wanted = _choice("--target", target, ("cpu", "cuda", "auto"))
    if self_test:
        if receipt or write_receipt or min_speedup or compiled:
            fail("--self-test judges planted faults: it takes no receipt, no speedup and no --compile", 2)
        from foundry.tools.selftest.command import SelfTestRequest, show

        show(SelfTestRequest(task, candidate, wanted, scale, faults, seed or 0, min_caught), as_json=as_json)
    if candidate is None:
        fail("name the candidate's file after the task's (only --self-test can do without)", 2)
    rules = _policy(policy)
    request = VerifyRequest(task, candidate, receipt, wanted, rules, scale, seed, min_speedup, compiled, write_receipt)
    document, code = run(request)
    if as_json:
        print_json(document)
    else:
        typer.echo("\n".join(verdict_lines(document)))
    raise typer.Exit(code)


@app.command()
@one_line_errors
def profile(
    task: Annotated[Path, typer.Argument(help="The task file.")],
    candidate: Annotated[Path, typer.Argument(help="A file with class ModelNew, ours or not.")],
    target: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    rung: Annotated[int, typer.Option(min=1, max=5, help="The highest to climb: 3 runs nothing, 5 counts.")] = 4,
    scale: Annotated[int | None, typer.Option(min=1, help="Sets the task's SCALE.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what limits a kernel and what to do about it: floor, compiler, machine code, kernel times, counters."""
    from foundry.tools.verify.profile_command import ProfileRequest, show

    place = _choice("--target", target, ("cpu", "cuda", "auto"))
    show(ProfileRequest(task, candidate, place, scale, rung), as_json=as_json)


def _choice(option: str, value: str, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        fail(f"{option} {value}: one of {', '.join(allowed)}", 2)
    return value


def _policy(value: str | None) -> Any:
    return None if value is None else _choice("--policy", value, ("fair", "open", "strict"))


if __name__ == "__main__":
    app()
