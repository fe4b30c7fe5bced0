"""Credits each move of a step with its effect, by a regression of measured steps over the moves that they made.

The logarithm of a step's speedup is the sum of its moves' effects and of an unexplained rest. A move's effect on a
graph has three parts, all near zero until something is measured: its template's everywhere, its template's at this
size, this graph's own. So few steps say little, and steps of other graphs fill in what this graph has not shown yet.
Moves that were only made together share their effect, with wide intervals, until a step has made them apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foundry.knowledge.experience.record import Credit, ExperienceRecord, Query

Array = np.ndarray[Any, np.dtype[np.float64]]

# Prior standard deviations of the logarithm of a move's effect, and of the rest that moves and timing noise do not
# explain. They are the values on a grid with the largest likelihood of
# 1,080 steps of searches of 24 recorded tasks (benchmarks/results/landscapes-*.jsonl).
TEMPLATE = 0.3
SHAPE = 0.1
GRAPH = 0.1
UNEXPLAINED = 0.4
OTHER_LIMITER = 0.7  # correlation of a move's effects under different limiters of the parents
OTHER_DEVICE = 0.6  # correlation of a move's effects on different devices
MOST = math.log(4.0)  # largest log gain or loss that counts: a slow parent is easily improved
MOST_DEVIATION = 2.0  # largest standard deviation taken from a timing
MOST_STEPS = 400  # steps that are read: this graph's first, then those of its size, then the newest
CITED = 4  # records cited for a move


@dataclass(frozen=True)
class MeasuredStep:
    """The moves of a step and its measured effect. `moves`: key -> how often, of all that it made at once."""

    graph_signature: str
    shape_class: str
    device: str
    limiter: str
    op_kinds: frozenset[str]
    moves: Mapping[str, int]
    log_lift: float
    deviation: float  # standard deviation of log_lift, by the timings
    records: Mapping[str, str]  # move -> id of its lesson


def step_of(record: ExperienceRecord, records: Mapping[str, str]) -> MeasuredStep:
    """The step behind a lesson, with the ids of its lessons. The lesson must have a lift."""
    assert record.log_lift is not None
    return MeasuredStep(
        record.graph_signature,
        shape_class=record.shape_class,
        device=record.device,
        limiter=record.limiter,
        op_kinds=frozenset(record.op_kinds),
        moves=record.together,
        log_lift=record.log_lift,
        deviation=min(record.log_deviation, MOST_DEVIATION),
        records=records,
    )


def nearest(steps: Sequence[MeasuredStep], query: Query) -> list[MeasuredStep]:
    """The steps worth reading: of this graph, and of graphs with some of its operators.

    Among equally near ones, those given first.
    """
    wanted = set(query.op_kinds)
    ranked = sorted(
        (step for step in steps if step.graph_signature == query.graph_signature or wanted & step.op_kinds),
        key=lambda step: (step.graph_signature != query.graph_signature, step.shape_class != query.shape_class),
    )
    return ranked[:MOST_STEPS]


def fit(steps: Sequence[MeasuredStep], query: Query, wanted: Collection[str] | None = None) -> list[Credit]:
    """The credit of each move (or of the wanted ones) on the query's graph, by these steps; best first."""
    moves = sorted({move for step in steps for move in step.moves} if wanted is None else wanted)
    if not steps or not moves:
        return []
    known = sorted({move for step in steps for move in step.moves} | set(moves))
    made = _made(steps, known)
    asked = made[:, [known.index(move) for move in moves]] * _alike(steps, query)[:, None]
    solved = np.linalg.solve(_covariance(steps, made), np.column_stack([asked, _brought(steps)]))
    mean = asked.T @ solved[:, -1]
    variance = TEMPLATE**2 + SHAPE**2 + GRAPH**2 - (asked * solved[:, :-1]).sum(axis=0)
    making: dict[str, list[MeasuredStep]] = {move: [] for move in moves}
    for step in steps:
        for move in step.moves.keys() & making.keys():
            making[move].append(step)
    found = [
        _credit(move, float(mean[index]), math.sqrt(max(float(variance[index]), 0.0)), making[move], query)
        for index, move in enumerate(moves)
    ]
    return sorted(found, key=lambda credit: (-credit.log_effect, credit.move))


def log_likelihood(steps: Sequence[MeasuredStep]) -> float:
    """Logarithm of the likelihood of the steps' effects, given their moves."""
    made = _made(steps, sorted({move for step in steps for move in step.moves}))
    root = np.linalg.cholesky(_covariance(steps, made))
    half = np.linalg.solve(root, _brought(steps))
    return float(-0.5 * half @ half - np.log(np.diag(root)).sum() - 0.5 * len(steps) * math.log(2 * math.pi))


def _brought(steps: Sequence[MeasuredStep]) -> Array:
    """The steps' log effects, clipped to MOST."""
    return np.clip([step.log_lift for step in steps], -MOST, MOST)


def _made(steps: Sequence[MeasuredStep], moves: Sequence[str]) -> Array:
    """Matrix step x move: number of times."""
    columns = {move: column for column, move in enumerate(moves)}
    found = np.zeros((len(steps), len(moves)))
    for row, step in enumerate(steps):
        for move, count in step.moves.items():
            found[row, columns[move]] = count
    return found


def _covariance(steps: Sequence[MeasuredStep], made: Array) -> Array:
    """Prior covariance of the steps' effects: for each shared move, the covariance of its effects in both steps,
    plus noise."""

    def same(values: Sequence[str]) -> Array:
        """A matrix with 1.0 where two of the values are equal, else 0.0."""
        found = np.unique(np.array(values), return_inverse=True)[1]
        return np.asarray(found[:, None] == found[None, :], dtype=float)

    shared = TEMPLATE**2 + SHAPE**2 * same([step.shape_class for step in steps])
    shared += GRAPH**2 * same([step.graph_signature for step in steps])
    shared *= OTHER_DEVICE + (1 - OTHER_DEVICE) * same([step.device for step in steps])
    shared *= OTHER_LIMITER + (1 - OTHER_LIMITER) * same([step.limiter for step in steps])
    noise = np.array([UNEXPLAINED**2 + step.deviation**2 for step in steps])
    found: Array = made @ made.T * shared + np.diag(noise)
    return found


def _alike(steps: Sequence[MeasuredStep], query: Query) -> Array:
    """Covariance of a move's effect in each step with that on the query's graph."""
    return np.array(
        [
            (
                TEMPLATE**2
                + SHAPE**2 * (step.shape_class == query.shape_class)
                + GRAPH**2 * (step.graph_signature == query.graph_signature)
            )
            * (1.0 if step.device == query.device else OTHER_DEVICE)
            * (1.0 if step.limiter == query.limiter else OTHER_LIMITER)
            for step in steps
        ]
    )


def _credit(move: str, log_effect: float, deviation: float, own: Sequence[MeasuredStep], query: Query) -> Credit:
    """The credit of a move that these steps made: its effect, and how many steps made it, here, alone, and with a
    gain."""
    here = [step for step in own if step.graph_signature == query.graph_signature]
    others = [set(step.moves) - {move} for step in own]
    cited = sorted(own, key=lambda step: step.graph_signature != query.graph_signature)
    return Credit(
        move,
        log_effect,
        deviation,
        steps=len(own),
        here=len(here),
        alone=sum(not also for also in others),
        wins=sum(step.log_lift > 0 for step in own),
        inseparable=tuple(sorted(set.intersection(*others))) if others else (),
        records=tuple(step.records[move] for step in cited if move in step.records)[:CITED],
    )
