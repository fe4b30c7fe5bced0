"""How well moves' credits say what a step brings, beside equal shares of each step, on searches of recorded landscapes.

python benchmarks/credit.py benchmarks/results/landscapes-*.jsonl

Two searches of each task are run without a store of other tasks. What each step brought is predicted from its moves:
by what the searches of all other tasks brought, and by these and what the same search had brought before.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from landscapes import read_landscapes
from search import TEACHING, teach

from foundry.knowledge.experience.credit import MOST, MeasuredStep, fit, log_likelihood, nearest, step_of
from foundry.knowledge.experience.record import ExperienceRecord, Query

SEEDS = (100, 101)
ELSEWHERE = 0.35  # what a step of another graph weighs where each step is shared out equally
Predicted = tuple[float, float, float]  # brought; by equal shares, by credits: logarithms


def steps_of(records: Sequence[ExperienceRecord]) -> list[MeasuredStep]:
    """The steps of searches, in their order."""
    found: dict[tuple[str, str], list[ExperienceRecord]] = defaultdict(list)
    for record in records:
        if record.log_lift is not None:
            found[record.run, record.step].append(record)
    return [step_of(made[0], {record.move: record.id for record in made}) for made in found.values()]


def share_out(known: Sequence[MeasuredStep], query: Query) -> Mapping[str, float]:
    """What each move has brought on average where each step is shared out equally among its moves, less while little is
    known."""
    sums: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for step in known:
        near = 1.0 if step.graph_signature == query.graph_signature else ELSEWHERE
        total = sum(step.moves.values())
        for move, count in step.moves.items():
            weight, log = sums[move]
            sums[move] = weight + near, log + near * clipped(step) * count / total
    return {move: log / (weight + 1.0) for move, (weight, log) in sums.items()}


def clipped(step: MeasuredStep) -> float:
    return max(-MOST, min(MOST, step.log_lift))


def predict(step: MeasuredStep, known: Sequence[MeasuredStep], target: str) -> Predicted:
    where = (step.graph_signature, tuple(sorted(step.op_kinds)), step.shape_class, step.device)
    query = Query(*where, "cuda" if target == "cuda" else "cpu", step.limiter)
    read = nearest(known, query)
    shares = share_out(read, query)
    credits = {credit.move: credit.log_effect for credit in fit(read, query, sorted(step.moves))}
    shared = sum(count * shares.get(move, 0.0) for move, count in step.moves.items())
    credited = sum(count * credits.get(move, 0.0) for move, count in step.moves.items())
    return clipped(step), shared, credited


def told(title: str, rows: Sequence[Predicted]) -> str:
    brought, shared, credited = np.array(rows).T

    def error(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
        likeness = np.corrcoef(brought, values)[0, 1] if np.any(values) else 0.0
        return f"{math.sqrt(np.mean((brought - values) ** 2)):.3f}, {likeness:.2f}"

    return f"| {title} | {len(rows)} | {error(0 * brought)} | {error(shared)} | {error(credited)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    landscapes = [item for path in asked.files for item in read_landscapes(path)]
    jobs = [(item, seed) for item in landscapes for seed in SEEDS]
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        items, seeds = zip(*jobs, strict=True)
        searches = list(map(steps_of, pool.map(teach, items, seeds, [TEACHING] * len(jobs))))
    print("| steps of | steps | nothing: error, correlation | equal shares | credits |")
    for target in ("cpu", "cuda"):
        own = [
            (item.task, made) for (item, _), made in zip(jobs, searches, strict=True) if item.device.target == target
        ]
        foreign, before = list[Predicted](), list[Predicted]()
        for task, made in own:
            others = [step for other, found in own if other != task for step in found]
            for number, step in enumerate(made):
                foreign.append(predict(step, others, target))
                before.append(predict(step, [*reversed(made[:number]), *others], target))
        print(told(f"{target}, by other tasks", foreign))
        print(told(f"{target}, and by this search before", before))
        likelihood = log_likelihood([step for _, made in own for step in made])
        print(f"{target}: log-likelihood {likelihood:.1f}", flush=True)


if __name__ == "__main__":
    main()
