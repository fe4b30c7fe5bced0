"""Where the seconds of a run went: what followed what until the first verified candidate, and how many came a minute.

    foundry agent solve TASK --minutes 1 --no-compile
    python benchmarks/timeline.py runs/RUN --out timeline.json

Each line is a tool of the trace with when it began, how long it took, what of that it waited for the device, and how
long before it nothing at all was under way.
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


def read(run: Path) -> tuple[float, list[Event], list[float]]:
    """When the run began, its tools' spans, and when each first evaluation of a candidate ended, in seconds."""
    opened = RunDirectory.inspect(run)
    try:
        log = EventLog(opened.database, reading=True)
        began = log.began()
        tools = [event for event in log.read(kind="tool") if event.ended is not None]
        ended: dict[str, float] = {}
        for event in log.read(kind="evaluation"):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
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
