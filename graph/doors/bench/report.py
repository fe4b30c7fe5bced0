"""The summary of a bench as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foundry.graph.doors.bench.figures import Figures, figures_of
from foundry.graph.doors.bench.results import TaskResult

REASON_LENGTH = 200
RIVALS = ("vs eager, default", "vs compile", "vs max-autotune")
HOW = (
    "`correct`: tasks with an accepted kernel, of those that count. `geomean` and `median`: over the accepted kernels,"
    " those slower than PyTorch among them. `geomean, else 1.0x`: over all tasks that count, one without an accepted"
    " kernel as 1.0x, because its user keeps PyTorch. `fast_p`: share of the tasks that count whose accepted kernel is"
    " more than p times as fast as eager. Speedups are over PyTorch eager, with TF32 allowed on CUDA. Rivals are timed"
    " in turns with the kernel, and compared on the tasks on which they could be. `peak memory`: the kernel's over"
    " eager's, of one call with its inputs and parameters. Medians of seconds and the rate of evaluations leave out"
    " runs that were stopped in between."
)


def report(results: Sequence[TaskResult], pictures: Sequence[str] = ()) -> str:
    """Figures, pictures by their file names, tasks, and those that do not count or have no kernel with the reason."""
    versions = next((result.versions for result in results if result.versions), {})
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts = ["# Bench", said, *_group_table(figures_of(results)), HOW]
    parts += [f"![{name.rpartition('.')[0]}]({name})" for name in pictures]
    parts += ["## Tasks", _task_table([result for result in results if result.is_accepted])]
    without = [result for result in results if result.counts and not result.is_accepted]
    excluded = [result for result in results if not result.counts]
    if without:
        parts += ["## Without an accepted kernel", *_listed((one.task, one.reason) for one in without)]
    if excluded:
        said_of = ((one.task, f"{one.excluded}: {one.reason}") for one in excluded)
        parts += ["## Not counted", *_listed(said_of)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _group_table(found: Sequence[Figures]) -> list[str]:
    """Tables of the figures by group: speeds, baselines, other rules, costs."""
    heads = ("tasks", "count", "correct", "geomean", "geomean, else 1.0x", "median", "fast_1", "fast_1.2", "fast_2")
    rows = [
        (
            one.group,
            str(one.tasks),
            str(one.counted),
            share(one.correct),
            times(one.geomean),
            times(one.geomean_of_all),
            times(one.median),
            share(one.fast_1),
            share(one.fast_1_2),
            share(one.fast_2),
        )
        for one in found
    ]
    beside = ("of the floor", "peak memory", "first verified, s", "s", "evaluations a minute")
    more = [
        (
            one.group,
            share(one.fraction_of_floor),
            times(one.peak_memory),
            number(one.first_verified_s),
            number(one.task_s),
            number(one.evaluations_per_minute),
        )
        for one in found
    ]
    return [
        _table(("group", *heads), rows),
        *_rival_table(found),
        *_foreign_table(found),
        _table(("group", *beside), more),
    ]


def _rival_table(found: Sequence[Figures]) -> list[str]:
    """The table of baselines, in a list; empty if none was timed."""
    heads = ("group", "rival", "tasks", "over eager, TF32 allowed", "our geomean over it", "beaten")
    rows = [
        (one.group, name, str(rival.tasks), times(rival.over_baseline), times(rival.by_kernel), share(rival.beaten))
        for one in found
        for name, rival in (
            ("eager, default arithmetic", one.eager),
            ("torch.compile", one.compiled),
            ("torch.compile, max-autotune", one.autotuned),
        )
        if rival.tasks
    ]
    return [_table(heads, rows)] if rows else []


def _foreign_table(found: Sequence[Figures]) -> list[str]:
    """The table of figures by other rules, in a list: a row for each group that has them. Empty if none has."""
    heads = ("group", "rules", "correct", "geomean", "fast_1", "timed eager is correct")
    rows = [
        (
            one.group,
            rules.rules,
            share(rules.correct),
            times(rules.geomean),
            share(rules.fast_1),
            share(rules.eager_correct),
        )
        for one in found
        if (rules := one.foreign) is not None
    ]
    return [_table(heads, rows)] if rows else []


def _task_table(results: Sequence[TaskResult]) -> str:
    """The table of accepted kernels, one row a task."""
    heads = (
        "task",
        "eager ms",
        "ours ms",
        "speedup [95 %]",
        *RIVALS,
        "memory",
        "of the floor",
        "class",
        "by its rules",
    )
    rows = [
        (
            one.task,
            milliseconds(one.baseline_ms),
            milliseconds(one.candidate_ms),
            interval(one),
            times(one.speedup_vs_eager),
            times(one.speedup_vs_compile),
            times(one.speedup_vs_autotune),
            times(one.peak_memory_ratio),
            share(one.fraction_of_floor),
            one.accuracy_class or "-",
            _by_its_rules(one),
            str(one.evaluations),
            number(one.wall_s),
            "; ".join(one.labels) or "-",
        )
        for one in results
    ]
    return _table((*heads, "evaluations", "s", "labels"), rows) if rows else "None has an accepted kernel."


def _by_its_rules(result: TaskResult) -> str:
    """The speedup by another benchmark's rules, or why the kernel fails them; "-" if not judged by them."""
    found = result.foreign
    if found is None:
        return "-"
    return times(found.speedup) if found.correct else f"{found.trials}: {found.evidence}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [_row(heads), "|" + "---|" * len(heads), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    """A row of a Markdown table; bars in cells are escaped."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _listed(said: Iterable[tuple[str, str]]) -> list[str]:
    """A list with one text: Markdown bullets of tasks and reasons, each reason cut to REASON_LENGTH."""
    return ["\n".join(f"- {task}: {' '.join(reason.split())[:REASON_LENGTH]}" for task, reason in said)]


def interval(result: TaskResult) -> str:
    """The speedup with its 95 % interval as text; "-" if it is not known."""
    if result.speedup is None:
        return "-"
    if result.speedup_ci95 is None:
        return f"{result.speedup:.2f}x"
    return f"{result.speedup:.2f}x [{result.speedup_ci95[0]:.2f}, {result.speedup_ci95[1]:.2f}]"


def times(ratio: float | None) -> str:
    """A ratio as text such as "1.25x"; "-" for None."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def share(part: float | None) -> str:
    """A part of 1 as a percentage; "-" for None."""
    return "-" if part is None else f"{100 * part:.0f} %"


def number(value: float | None) -> str:
    """A number with one decimal; "-" for None."""
    return "-" if value is None else f"{value:.1f}"


def milliseconds(value: float | None) -> str:
    """Milliseconds with three decimals; "-" for None."""
    return "-" if value is None else f"{value:.3f}"
