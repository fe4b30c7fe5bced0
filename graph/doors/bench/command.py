"""`foundry bench`: its arguments and its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foundry.tools.command_line import choose, choose_target, fail, one_line_errors, print_json, say

if TYPE_CHECKING:
    from foundry.graph.doors.bench.bench import Outcome
    from foundry.graph.doors.bench.request import BenchRequest
    from foundry.knowledge.candidate import RivalName

KERNELBENCH = "kernelbench"
PROTOCOLS = "By whose rules winners are judged besides ours: foundry (none), verified or kernelbench."
PICTURES = "Draw them at the end; default: where matplotlib is installed."


@one_line_errors
def bench(
    tasks: Annotated[str, typer.Argument(help='A folder of task files, or "kernelbench" with --root.')],
    root: Annotated[Path | None, typer.Option(help="A checkout of KernelBench.")] = None,
    levels: Annotated[str | None, typer.Option(help="KernelBench: which, for example 1,2,3; default: 1,2,3.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of results and runs; default: bench/NAME.")] = None,
    target: Annotated[str, typer.Option(help="cpu, cuda, auto, or a target of an installed package.")] = "auto",
    effort: Annotated[str, typer.Option(help="For each task: bench (a minute), quick, standard or deep.")] = "bench",
    evaluations: Annotated[int | None, typer.Option(min=1, help="Budget of each task; default: the effort's.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Budget of each task: minutes of search.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of every run.")] = 0,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = True,
    max_autotune: Annotated[bool, typer.Option("--max-autotune", help="Time it in that mode besides.")] = False,
    protocol: Annotated[str, typer.Option(help=PROTOCOLS)] = "foundry",
    only: Annotated[str, typer.Option(metavar="PATTERN", help="Tasks whose names hold it; * ? [] match whole.")] = "",
    every: Annotated[int, typer.Option(min=1, help="Every n-th task.")] = 1,
    shard: Annotated[str, typer.Option(metavar="I/N", help="The I-th of N parts, for N machines.")] = "1/1",
    gpus: Annotated[str, typer.Option(metavar="all|N|0,1", help="Spread the tasks: one process a GPU.")] = "",
    lanes: Annotated[int, typer.Option(min=1, help="Tasks at a time on each GPU, which share its memory.")] = 1,
    pictures: Annotated[bool | None, typer.Option("--pictures/--no-pictures", help=PICTURES)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as one JSON document.")] = False,
) -> None:
    """Search a kernel for every task of a folder; the same command again goes on where it was stopped or killed."""
    if (tasks == KERNELBENCH) != (root is not None) or (levels is not None and root is None):
        fail("KernelBench is named by: kernelbench --root DIR [--levels 1,2,3]; any other folder by its path", 2)
    from foundry.graph.doors.bench.bench import run_bench
    from foundry.graph.doors.bench.request import BenchRequest, levels_of, shard_of
    from foundry.graph.run.request import EFFORTS, RunLimits

    request = BenchRequest(
        folder=str(root or tasks),
        out=str(out or Path("bench") / (Path(tasks).resolve().name if root is None else KERNELBENCH)),
        levels=() if root is None else levels_of(levels or "1,2,3"),
        target=choose_target(target),
        effort=choose("--effort", effort, tuple(EFFORTS)),
        limits=RunLimits(evaluations, minutes),
        seed=seed,
        rivals=_rivals(compiled, max_autotune),
        protocol=choose("--protocol", protocol, ("foundry", "verified", "kernelbench")),
        only=only,
        every=every,
        shard=shard_of(shard),
    )
    outcome = run_bench(request, gpus, lanes, pictures=pictures, say=lambda line: say(line, err=as_json))
    _say_figures(outcome, request, as_json)
    _exit(outcome, request)


def _say_figures(outcome: Outcome, request: BenchRequest, as_json: bool) -> None:
    """Prints the bench's figures by group and where the summary lies, or all as JSON."""
    from foundry.graph.doors.bench.bench import FIGURES, SUMMARY
    from foundry.graph.doors.bench.figures import figures_of
    from foundry.graph.doors.bench.report import share, times
    from foundry.knowledge.codec import to_plain

    found = figures_of(outcome.lines)
    if as_json:
        print_json({"out": request.out, "left": outcome.left, "figures": [to_plain(one) for one in found]})
        return
    for one in found:
        compiled_too = one.compiled.by_kernel
        versus = f", {times(compiled_too)} that of torch.compile" if compiled_too else ""
        say(
            f"{one.group}: {one.accepted} of {one.counted} tasks that count have an accepted kernel;"
            f" geometric mean {times(one.geomean)} the speed of eager{versus};"
            f" {share(one.fast_1)} are faster than eager (fast_1)"
        )
    say(f"summary: {request.where / SUMMARY}, {request.where / FIGURES}")


def _exit(outcome: Outcome, request: BenchRequest) -> None:
    """Ends the program with 130 if it was interrupted, with 1 if tasks are left or none is accepted; else returns."""
    if outcome.left and outcome.is_stopped:
        fail(f"interrupted, the state is kept in {request.out}: the same command goes on", 130)
    if outcome.left:
        fail(f"another process has {outcome.left} tasks of {request.out}", 1)
    if not any(one.is_accepted for one in outcome.lines):
        raise typer.Exit(1)


def _rivals(compiled: bool, max_autotune: bool) -> tuple[RivalName, ...]:
    """The baselines to measure; eager always."""
    compilers: tuple[RivalName, ...] = ("compile", "compile max-autotune") if max_autotune else ("compile",)
    return ("eager", *(compilers if compiled else ()))
