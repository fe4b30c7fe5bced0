"""The pictures of a bench, as SVG and PNG. matplotlib is imported here and nowhere else."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foundry.graph.doors.bench.figures import fast
from foundry.graph.doors.bench.results import TaskResult
from foundry.knowledge.errors import MissingTool

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EAGER, COMPILE, QUIET = "#1f5fa8", "#d9822b", "#8a8f98"
MOST_NAMES = 60  # tasks whose names fit below a picture
CURVE = [2 ** (step / 40) for step in range(-140, 281)]  # bars p of the fast_p curve, 0.09 to 128
INCHES_A_TASK = 0.16


def check_drawable() -> None:
    """Raises MissingTool with the command that installs what is missing."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise MissingTool("pictures need matplotlib", "pip install matplotlib, or --no-pictures") from error


def draw(results: Sequence[TaskResult], folder: Path) -> list[str]:
    """Writes each picture as SVG and PNG into `folder`; returns the names of the SVG files."""
    import matplotlib
    from matplotlib.figure import Figure

    counted = [result for result in results if result.counts]
    pictures: dict[str, Callable[[Axes, Sequence[TaskResult]], None]] = {
        "speedup": _speedups,
        "fast_p": _fast_p,
        "roofline": _floors,
        "evaluations": _evaluations,
    }
    with matplotlib.rc_context({"svg.hashsalt": "foundry", "font.size": 9}):  # the same results, the same file
        for name, plot in pictures.items():
            is_by_task = plot in (_speedups, _floors)
            width = max(7.0, min(30.0, INCHES_A_TASK * len(counted) + 2)) if is_by_task else 7.0
            figure = Figure(figsize=(width, 4.2), layout="constrained")
            axes = figure.add_subplot()
            axes.spines[["top", "right"]].set_visible(False)
            plot(axes, counted)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            figure.savefig(folder / f"{name}.png", dpi=150)
    return [f"{name}.svg" for name in pictures]


def _speedups(axes: Axes, counted: Sequence[TaskResult]) -> None:
    """Plots each accepted kernel's speedup over eager, with its interval, and over torch.compile; the slowest first."""
    known = sorted((one for one in counted if one.is_accepted), key=lambda one: one.speedup or 0.0)
    places = range(len(known))
    over_eager = [one.speedup or 0.0 for one in known]
    below = [value - (one.speedup_ci95 or (value, value))[0] for one, value in zip(known, over_eager, strict=True)]
    above = [(one.speedup_ci95 or (value, value))[1] - value for one, value in zip(known, over_eager, strict=True)]
    axes.errorbar(places, over_eager, [below, above], fmt="o", ms=4, color=EAGER, label="over eager")
    compiled = [(at, one.speedup_vs_compile) for at, one in enumerate(known) if one.speedup_vs_compile]
    axes.plot([at for at, _ in compiled], [ratio for _, ratio in compiled], "D", ms=3.5, color=COMPILE)
    axes.plot([], [], "D", ms=3.5, color=COMPILE, label="over torch.compile")
    axes.axhline(1.0, color=QUIET, lw=0.8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_ylabel("speedup")
    axes.set_title(f"{len(known)} accepted kernels of {len(counted)} tasks that count")
    axes.legend(frameon=False)
    _name_tasks(axes, known)


def _fast_p(axes: Axes, counted: Sequence[TaskResult]) -> None:
    """Draws for every p the share of the tasks that are more than p times as fast as eager, and torch.compile's beside
    it."""
    axes.plot(CURVE, [fast(counted, bar) or 0.0 for bar in CURVE], color=EAGER, label="accepted kernels")
    compiled = [one.compile_speedup for one in counted if one.compile_speedup]
    if compiled:
        shares = [sum(ratio > bar for ratio in compiled) / len(compiled) for bar in CURVE]
        axes.plot(CURVE, shares, color=COMPILE, label="torch.compile, where it could be timed")
    axes.axvline(1.0, color=QUIET, lw=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    highest = max([4.0, *compiled, *(one.speedup or 0.0 for one in counted)])
    axes.set(xlim=(CURVE[0], min(1.25 * highest, CURVE[-1])), ylim=(0, 1.02), xlabel="p, over eager", ylabel="fast_p")
    axes.legend(frameon=False)


def _floors(axes: Axes, counted: Sequence[TaskResult]) -> None:
    """Draws how near each accepted kernel is to the roofline floor, in percent, sorted."""
    known = sorted(
        (one for one in counted if one.is_accepted and one.fraction_of_floor is not None),
        key=lambda one: one.fraction_of_floor or 0.0,
    )
    axes.bar(range(len(known)), [100 * (one.fraction_of_floor or 0.0) for one in known], color=EAGER, width=0.7)
    axes.axhline(100.0, color=QUIET, lw=0.8)
    axes.set_ylabel("% of the roofline floor")
    _name_tasks(axes, known)


def _evaluations(axes: Axes, counted: Sequence[TaskResult]) -> None:
    """Candidates evaluated since a task's run began, one line a task and the mean; runs in one piece only."""
    known = [sorted(one.evaluated_s) for one in counted if one.sessions == 1 and one.evaluated_s]
    for times in known:
        axes.step([0.0, *times], range(len(times) + 1), where="post", color=QUIET, lw=0.5, alpha=0.5)
    moments = sorted(moment for times in known for moment in times)
    mean = [(at + 1) / len(known) for at in range(len(moments))]
    axes.step([0.0, *moments], [0.0, *mean], where="post", color=EAGER, lw=1.6, label="mean")
    axes.set(xlabel="seconds since the task began", ylabel="candidates evaluated", ylim=(0, None))
    axes.legend(frameon=False)


def _name_tasks(axes: Axes, results: Sequence[TaskResult]) -> None:
    """Labels the axis with the tasks' names; with "tasks" only if there are too many."""
    if len(results) > MOST_NAMES:
        axes.set_xlabel("tasks")
        axes.set_xticks([])
        return
    axes.set_xticks(range(len(results)), [one.task for one in results], rotation=90, fontsize=7)
