"""Where the seconds of a run went: what followed what until the first verified candidate, and how many came a minute.

    foundry agent solve TASK --minutes 1 --no-compile
    python benchmarks/lab/timeline.py runs/RUN --out timeline.json
    python benchmarks/lab/timeline.py --bench bench/kernelbench     # seconds by phase, a column a task

Each line is a tool of the trace with when it began, how long it took, what of that it waited for the device, and how
long before it nothing at all was under way. The phases of a bench's runs are without what they waited; what lasted when
a run was stopped counts until then.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.run_directory import RunDirectory

Row = dict[str, Any]
PHASES = (
    "start",
    "intake",
    "baseline",
    "first candidate",
    "tuning",
    "later candidates",
    "proof: correctness",
    "proof: audit, sanitizer",
    "proof: timing",
    "rivals",
    "nothing under way",
    "waiting",
)
OF_TOOLS = {
    "ceilings": "start",
    "start workers": "start",
    "intake": "intake",
    "baseline": "baseline",
    "tune": "tuning",
    "contest": "rivals",
}
OF_PROOFS = {"verify final": "proof: correctness", "audit": "proof: audit, sanitizer"}  # any other tool: its timing


def read(run: Path) -> tuple[float, list[Event], list[float]]:
    """When the run began, its tools' spans, and when each first evaluation of a candidate ended, in seconds."""
    opened = RunDirectory.inspect(run)
    try:
        log = EventLog(opened.database, reading=True)
        began = log.began()
        tools = [event for event in log.read("tool") if event.ended is not None]
        ended: dict[str, float] = {}
        for event in log.read("evaluation"):
            if event.data.get("speedup"):
                ended.setdefault(event.name, event.started - began)
        return began, sorted(tools, key=lambda event: event.started), sorted(ended.values())
    finally:
        opened.close()


def rows_of(began: float, tools: Sequence[Event], until_s: float) -> list[Row]:
    """The spans that began before `until_s`, each with the gap before it in which no tool worked."""
    rows: list[Row] = []
    reached = 0.0
    for event in tools:
        start, end = event.started - began, (event.ended or event.started) - began
        if start > until_s:
            break
        rows.append(
            {
                "at_s": round(start, 2),
                "seconds": round(end - start, 2),
                "waited_s": round(float(event.data.get("wait_s", 0.0)), 2),
                "gap_s": round(max(0.0, start - reached), 2),
                "what": event.name,
                "step": event.step,
            }
        )
        reached = max(reached, end)
    return rows


def evaluations_a_minute(ended: Sequence[float], tools: Sequence[Event], began: float) -> float:
    """From the first evaluation to the last one of the search; proofs of the end are no evaluations."""
    proofs = [event.started - began for event in tools if event.name.endswith("final")]
    inside = [moment for moment in ended if moment <= min(proofs, default=float("inf"))]
    return 60.0 * (len(inside) - 1) / (inside[-1] - inside[0]) if len(inside) > 2 else 0.0


def medians(tools: Sequence[Event]) -> dict[str, float]:
    """Median seconds of each tool without what it waited."""
    found: dict[str, list[float]] = {}
    for event in tools:
        seconds = (event.seconds or 0.0) - float(event.data.get("wait_s", 0.0))
        found.setdefault(event.name, []).append(seconds)
    return {name: round(statistics.median(values), 3) for name, values in sorted(found.items())}


def phase_of(event: Event) -> str:
    """To which phase of a task a tool belongs."""
    if event.step.startswith("final/"):
        return OF_PROOFS.get(event.name, "proof: timing")
    return OF_TOOLS.get(event.name, "first candidate" if event.step.startswith("seed") else "later candidates")


def phases(run: Path) -> tuple[str, dict[str, float]]:
    """A run's folder and its seconds by phase; tools that ran beside each other add up."""
    began, tools, _ = read(run)
    found = dict.fromkeys(PHASES, 0.0)
    for event, row in zip(tools, rows_of(began, tools, float("inf")), strict=True):
        found[phase_of(event)] += row["seconds"] - row["waited_s"]
        found["nothing under way"] += row["gap_s"]
        found["waiting"] += row["waited_s"]
    return run.parent.name, found


def print_phases(bench: Path) -> list[Row]:
    """The table of a bench's runs, and its rows."""
    found = [phases(database.parent) for database in sorted(bench.glob("runs/**/run.sqlite"))]
    rows: list[Row] = []
    print("phase, s".ljust(24), *(name[:14].rjust(15) for name, _ in found), "mean".rjust(8))
    for phase in PHASES:
        seconds = [one[phase] for _, one in found]
        rows.append({"phase": phase, **{name: round(one[phase], 2) for name, one in found}})
        mean_s = statistics.fmean(seconds) if seconds else 0.0
        print(phase.ljust(24), *(f"{one:15.1f}" for one in seconds), f"{mean_s:8.1f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--bench", type=Path, help="a bench's folder")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if (arguments.run is None) == (arguments.bench is None):
        parser.error("name a run, or --bench DIR")
    if arguments.bench is not None:
        rows = print_phases(arguments.bench)
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
        return
    began, tools, ended = read(arguments.run)
    first = ended[0] if ended else float("inf")
    rows = rows_of(began, tools, first)
    document = {
        "first_evaluation_s": round(first, 2) if ended else None,
        "idle_before_it_s": round(sum(row["gap_s"] for row in rows), 2),
        "evaluations": len(ended),
        "evaluations_a_minute": round(evaluations_a_minute(ended, tools, began), 1),
        "medians_s": medians(tools),
        "timeline": rows,
    }
    print(f"{'at':>7} {'took':>7} {'waited':>7} {'gap':>6}")
    for row in rows:
        times = (row["at_s"], row["seconds"], row["waited_s"], row["gap_s"])
        print(*(f"{value:7.2f}" for value in times), row["step"], row["what"])
    print(json.dumps({name: value for name, value in document.items() if name != "timeline"}, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
