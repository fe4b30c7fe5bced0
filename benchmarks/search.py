"""What each part of the search brings, on landscapes of recorded times: no device, the real search.

python benchmarks/search.py run FILE... --seeds 5 --evaluations 24 --out benchmarks/results/search.json
python benchmarks/search.py table benchmarks/results/search.json

Every variant searches the same tasks from the same random starts, with the same noise of each timing, so that
differences are paired. The whole recalls what one search of each other task left in the store, never of the task
itself. Some tasks are held out: nothing was tuned on them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from landscapes import Landscape, read_landscapes
from replayed import RecordedLibrary, RecordedWorkbench, Trail, memory, run_search

from foundry.graph.run.request import OFF, Mechanism
from foundry.knowledge.candidate import Build, Recipe
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.experience.journal import LessonJournal
from foundry.knowledge.experience.record import ExperienceRecord
from foundry.knowledge.library import moves as kernel_library
from foundry.knowledge.library.lowered import Lowered

EVALUATIONS, TEACHING = 32, 24
OF_ABLATIONS = 24  # evaluations: compared with as many of the whole's
# Nothing was tuned on them.
HELD_OUT = frozenset(
    (
        *("product_wide", "convolution_early", "convolution_late", "chain_long", "chain_short", "columns_largest"),
        *("squared_error", "linear_norm", "softmax_scaled", "batched_softmax", "convolution_turned"),
        *("convolution_pool", "pool_overlapping"),
    )
)
NEAR = 0.95  # of the best known
WHOLE, COLD = "the whole", "without experience"
LONG = ("random", "coordinate descent", WHOLE, COLD)
ABLATED: tuple[Mechanism, ...] = ("estimates", "archive", "roles", "profiler")
# Left out together as well: what each of them alone does not show, all may.
BARE = "without these three together"
TOGETHER: tuple[Mechanism, ...] = ("archive", "roles", "profiler")
RESAMPLED = 4000
TAUGHT = 100  # the seed of the searches that the experience is from
WARM_EVALUATIONS = 24
EARLY = 8  # evaluations after which a warm start must show


class Evaluator:
    """What random search and coordinate descent see: the same library, machine and noise as the real search."""

    def __init__(self, library: RecordedLibrary, seed: int) -> None:
        self.library, self.bench = library, RecordedWorkbench(library, seed)
        self.trail = Trail(library.best_ms)
        self.known: dict[str, float] = {}

    async def evaluate(self, recipe: Recipe) -> float:
        """The speedup that a screen shows, 0 for one that does not build; each candidate once."""
        found = self.library.made(recipe)
        digest = found.recipe.digest
        if digest not in self.known:
            build: Build = await self.bench.build(found.source)
            timing = await self.bench.time(found.source, build, "screen") if build.ok else None
            self.known[digest] = timing.speedup if timing else 0.0
            self.trail.beliefs.append(self.known[digest])
            self.trail.ms.append(self.library.landscape.ms(found))
        return self.known[digest]

    @property
    def spent(self) -> int:
        return len(self.known)


async def search_randomly(library: RecordedLibrary, seed: int, evaluations: int) -> Trail:
    stream = random.Random(f"{seed}:random")
    machine = Evaluator(library, seed)
    assert library.start is not None
    await machine.evaluate(library.start)
    for _ in range(40 * evaluations):
        if machine.spent >= evaluations:
            break
        await machine.evaluate(library.draw(stream, stream.choice(library.structures)))
    return machine.trail


async def descend(library: RecordedLibrary, seed: int, evaluations: int) -> Trail:
    """Coordinate descent: all values of one tunable, or one change of structure, after the other, the best is kept;
    from a random place again where a whole turn has brought nothing."""
    stream = random.Random(f"{seed}:coordinates")
    machine = Evaluator(library, seed)
    assert library.start is not None
    here = library.made(library.start)
    for _ in range(evaluations):
        best = await machine.evaluate(here.recipe)
        lines = list(_lines(library, here))
        stream.shuffle(lines)
        while lines and machine.spent < evaluations:
            tried = [(await machine.evaluate(one), one) for one in lines.pop() if machine.spent < evaluations]
            top = max(tried, key=lambda item: item[0], default=(0.0, here.recipe))
            if top[0] > best:
                best, here = top[0], library.made(top[1])
                lines = list(_lines(library, here))
                stream.shuffle(lines)
        if machine.spent >= evaluations:
            break
        here = library.made(library.draw(stream, stream.choice(library.structures)))
    return machine.trail


def _lines(library: RecordedLibrary, here: Lowered) -> Iterable[list[Recipe]]:
    """What can be changed alone: each tunable with its other values, and each change of structure."""
    for kernel in here.kernels:
        for item in kernel.tunables:
            now = kernel.choices.get(item.name)
            others = [value for value in item.values if value != now]
            chosen = [{**here.recipe.choices, kernel.name: {**kernel.choices, item.name: value}} for value in others]
            line = [Recipe(here.recipe.target, here.recipe.materialise, here.recipe.rewrites, one) for one in chosen]
            yield [recipe for recipe in line if _is_made(library, recipe)]
    for move in kernel_library.moves(here):
        if move.kind != "set":
            recipe = kernel_library.apply(here.recipe, move)
            yield [recipe] if _is_made(library, recipe) else []


def _is_made(library: RecordedLibrary, recipe: Recipe) -> bool:
    try:
        library.made(recipe)
    except CannotLower:
        return False
    return True


@dataclass(frozen=True)
class Result:
    """One search: the curve of what it had found, and the evaluations until it was near the best known."""

    variant: str
    task: str
    seed: int
    curve: tuple[float, ...]

    def cut(self, evaluations: int) -> Result:
        return replace(self, curve=self.curve[:evaluations])

    @property
    def area(self) -> float:
        return mean(self.curve)

    @property
    def evaluations(self) -> int:
        """More than were made where it never came near."""
        return next((count for count, value in enumerate(self.curve, 1) if value >= NEAR), len(self.curve) + 1)


PRINTED: dict[str, RecordedLibrary] = {}  # by task: what this process has printed
Variant = Callable[[RecordedLibrary, int, int, Sequence[ExperienceRecord]], Coroutine[Any, Any, Trail]]


async def recall_and_search(
    library: RecordedLibrary,
    seed: int,
    evaluations: int,
    records: Sequence[ExperienceRecord],
    without: tuple[Mechanism, ...] = OFF,
) -> Trail:
    """The real search with a store of its own that holds these records."""
    with tempfile.TemporaryDirectory(prefix="foundry-store-", dir=memory()) as folder:
        LessonJournal(Path(folder) / "journal.sqlite").append(records)
        return await run_search(library, seed, evaluations, store=Path(folder), without=without)


def _alone(search: Callable[[RecordedLibrary, int, int], Coroutine[Any, Any, Trail]]) -> Variant:
    """A search that recalls nothing."""
    return lambda library, seed, evaluations, _: search(library, seed, evaluations)


def variants() -> dict[str, Variant]:
    found: dict[str, Variant] = {"random": _alone(search_randomly), "coordinate descent": _alone(descend)}
    found[WHOLE] = recall_and_search
    found[COLD] = _alone(run_search)
    for name in ABLATED:
        found[f"without {name}"] = partial(recall_and_search, without=(*OFF, name))
    found[BARE] = partial(recall_and_search, without=(*OFF, *TOGETHER))
    for name in OFF:
        others = tuple(other for other in OFF if other != name)
        found[f"with {name}"] = partial(recall_and_search, without=others)
    kept_out = tuple(name for name in OFF if name not in ("gradients", "migration"))
    found["with gradients and migration"] = partial(recall_and_search, without=kept_out)
    return found


def work(
    landscape: Landscape, records: Sequence[ExperienceRecord], names: Sequence[str], seeds: Sequence[int], most: int
) -> list[Result]:
    """The searches of one task, in a process of their own: they share what the library has printed."""
    library, found = PRINTED.setdefault(landscape.task, RecordedLibrary(landscape)), list[Result]()
    for seed in seeds:
        library.start = library.draw_start(seed)
        for name in names:
            evaluations = most if name in LONG else min(most, OF_ABLATIONS)
            trail = asyncio.run(variants()[name](library, seed, evaluations, records))
            found.append(Result(name, landscape.task, seed, tuple(trail.curve(evaluations))))
    return found


# ---------------------------------------------------------------- experience


def teach(landscape: Landscape, seed: int, evaluations: int) -> list[ExperienceRecord]:
    """What a cold search of a task leaves in the store."""
    library = RecordedLibrary(landscape)
    library.start = library.draw_start(seed)
    with tempfile.TemporaryDirectory(prefix="foundry-store-") as folder:
        store = Path(folder)
        asyncio.run(run_search(library, seed, evaluations, store=store))
        return [record for _, record in LessonJournal(store / "journal.sqlite").after(0)]


def shuffled(records: Sequence[ExperienceRecord], seed: int) -> list[ExperienceRecord]:
    """The same lessons, with what came of each step dealt anew among the steps of each run."""
    stream = random.Random(f"{seed}:shuffled")
    found: list[ExperienceRecord] = []
    for run in dict.fromkeys(record.run for record in records):
        steps: dict[str, list[ExperienceRecord]] = {}
        for record in records:
            if record.run == run:
                steps.setdefault(record.step, []).append(record)
        for own, dealt in zip(steps.values(), stream.sample(list(steps.values()), len(steps)), strict=True):
            other = dealt[0]
            found += [
                replace(
                    record,
                    parent_speedup=other.parent_speedup,
                    child_speedup=other.child_speedup,
                    child_ci95=other.child_ci95,
                    outcome=other.outcome,
                )
                for record in own
            ]
    return found


def work_warm(
    landscape: Landscape, records: Sequence[ExperienceRecord], seeds: Sequence[int], evaluations: int
) -> list[Result]:
    """A task's searches without experience, with that of all other tasks, and with the same dealt anew."""
    library = RecordedLibrary(landscape)
    found = []
    for seed in seeds:
        library.start = library.draw_start(seed)
        for name, known in (("cold", None), ("warm", records), ("shuffled", shuffled(records, seed))):
            search = run_search if known is None else partial(recall_and_search, records=known)
            trail = asyncio.run(search(library, seed, evaluations))
            found.append(Result(name, landscape.task, seed, tuple(trail.curve(evaluations))))
    return found


def learn_of_others(
    landscapes: Sequence[Landscape], pool: ProcessPoolExecutor
) -> list[tuple[Landscape, list[ExperienceRecord]]]:
    """Each task with what searches of all others left in the store."""
    count = len(landscapes)
    taught = list(pool.map(teach, landscapes, [TAUGHT] * count, [TEACHING] * count))
    return [
        (
            item,
            [
                record
                for other, records in zip(landscapes, taught, strict=True)
                if other is not item
                for record in records
            ],
        )
        for item in landscapes
    ]


def run_warm(landscapes: Sequence[Landscape], seeds: Sequence[int], evaluations: int, processes: int) -> list[Result]:
    """Every task is left out once."""
    found: list[Result] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = [
            (item, pool.submit(work_warm, item, known, seeds, evaluations))
            for item, known in learn_of_others(landscapes, pool)
        ]
        for item, future in waiting:
            found += future.result()
            print(f"{item.task} left out", flush=True)
    return found


def run_all(landscapes: Sequence[Landscape], asked: argparse.Namespace) -> list[Result]:
    """Task after task, each from all its starts."""
    began, found = time.monotonic(), list[Result]()
    turns = [turn.split(",") for turn in asked.variants.split(";")] if asked.variants else [list(variants())]
    seeds = range(1, asked.seeds + 1)
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        others = learn_of_others(landscapes, pool)
        waiting = [
            (item, pool.submit(work, item, known, names, seeds, asked.evaluations))
            for names in turns
            for item, known in others
            if not asked.tasks or item.task in asked.tasks.split(",")
        ]
        for item, future in waiting:
            found += future.result()
            print(f"{item.task} at {time.monotonic() - began:.0f} s", flush=True)
            write_results(asked.out, found)
    return found


# ---------------------------------------------------------------- statistics


@dataclass(frozen=True)
class Compared:
    """A variant beside another over the same tasks and seeds. `ratio` of the evaluations, and the difference of the
    areas, each with its 95 % interval from a bootstrap over tasks and, within them, seeds; p from sign flips."""

    ratio: tuple[float, float, float]
    area: tuple[float, float, float]
    p: float
    wins: int
    losses: int


Pairs = Mapping[str, list[tuple[Result, Result]]]  # by task: the variant, the other


def pairs_of(results: Sequence[Result], one: str, other: str, keep: Callable[[Result], bool]) -> Pairs:
    known = {(item.variant, item.task, item.seed): item for item in results}
    found: dict[str, list[tuple[Result, Result]]] = {}
    for item in results:
        if item.variant == one and keep(item) and (other, item.task, item.seed) in known:
            theirs = known[other, item.task, item.seed]
            shorter = min(len(item.curve), len(theirs.curve))
            found.setdefault(item.task, []).append((item.cut(shorter), theirs.cut(shorter)))
    return found


def compare(pairs: Pairs, resampled: int = RESAMPLED) -> Compared:
    """Every task has as many seeds as the others."""
    found = np.array([[_measures(*pair) for pair in rows] for rows in pairs.values()])
    count, seeds, _ = found.shape
    stream = np.random.default_rng(0)
    tasks = stream.integers(count, size=(resampled, count, 1))
    drawn = found[tasks, stream.integers(seeds, size=(resampled, count, seeds))].mean(axis=(1, 2))
    mine, theirs, gain = found.mean(axis=(0, 1))
    differences = (found[:, :, 0] - found[:, :, 1]).ravel()
    signs = stream.choice((-1.0, 1.0), size=(resampled, len(differences)))
    extreme = int((abs(signs @ differences) >= abs(differences.sum())).sum())
    return Compared(
        (float(mine / theirs), *_interval(list(drawn[:, 0] / drawn[:, 1]))),
        (float(gain), *_interval(list(drawn[:, 2]))),
        (extreme + 1) / (resampled + 1),
        int((differences < 0).sum()),
        int((differences > 0).sum()),
    )


def _measures(mine: Result, theirs: Result) -> tuple[float, float, float]:
    return mine.evaluations, theirs.evaluations, mine.area - theirs.area


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ranked = sorted(values)
    return float(ranked[int(0.025 * len(ranked))]), float(ranked[int(0.975 * len(ranked))])


def warm_table(results: Sequence[Result]) -> list[str]:
    """The logarithm of the ratio of what was found after a few evaluations, beside the cold start."""
    lines = []
    for name in ("warm", "shuffled"):
        for count in (EARLY, 2 * EARLY, len(results[0].curve)):
            pairs = pairs_of(results, name, "cold", lambda item: True)
            gains = {
                task: [math.log(mine.curve[count - 1] / theirs.curve[count - 1]) for mine, theirs in found]
                for task, found in pairs.items()
            }
            stream = random.Random(0)
            drawn = []
            for _ in range(RESAMPLED):
                chosen = stream.choices(list(gains), k=len(gains))
                drawn.append(mean(stream.choice(gains[task]) for task in chosen for _ in gains[task]))
            every = [gain for found in gains.values() for gain in found]
            low, high = _interval(drawn)
            wins, losses = sum(gain > 0 for gain in every), sum(gain < 0 for gain in every)
            lines.append(
                f"| {name} | {count} | {math.exp(mean(every)):.3f} [{math.exp(low):.3f}, {math.exp(high):.3f}] |"
                f" {wins}:{losses} |"
            )
    return lines


def table(results: Sequence[Result]) -> list[str]:
    kept_back = HELD_OUT
    names = list(dict.fromkeys(item.variant for item in results))
    lines = []
    parts: list[tuple[str, Callable[[Result], bool]]] = [
        ("all", lambda item: True),
        ("seen", lambda item: item.task not in kept_back),
        ("held out", lambda item: item.task in kept_back),
    ]
    for title, keep in parts:
        chosen = [item for item in results if keep(item)]
        if not chosen:
            continue
        counts = len({item.task for item in chosen}), len({(item.task, item.seed) for item in chosen})
        lines.append(f"{title}: {counts[0]} tasks, {counts[1]} searches of each variant")
        for name in names:
            own = [item for item in chosen if item.variant == name]
            if not own:
                continue
            reached = mean(item.evaluations <= len(item.curve) for item in own)
            line = (
                f"| {name} | {mean(item.evaluations for item in own):.1f} | {100 * reached:.0f} % |"
                f" {mean(item.area for item in own):.3f} |"
            )
            pairs = pairs_of(results, WHOLE, name, keep)
            if name != WHOLE and pairs:
                found = compare(pairs)
                line += (
                    f" {found.ratio[0]:.2f} [{found.ratio[1]:.2f}, {found.ratio[2]:.2f}] |"
                    f" {found.area[0]:+.3f} [{found.area[1]:+.3f}, {found.area[2]:+.3f}] | {found.p:.4f} |"
                    f" {found.wins}:{found.losses} |"
                )
            lines.append(line)
    return lines


def write_results(path: Path | None, results: Sequence[Result]) -> None:
    if path:
        rows = [[item.variant, item.task, item.seed, [round(value, 3) for value in item.curve]] for item in results]
        path.write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "warm"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--variants", default="", help="A,B;C: A and B of all tasks, then C.")
    parser.add_argument("--tasks", default="", help="Of these files, to search; all of them teach.")
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.what == "table":
        rows = [row for path in asked.files for row in json.loads(path.read_text())]
        results = [Result(row[0], row[1], row[2], tuple(row[3])) for row in rows]
        print("\n".join(warm_table(results) if rows[0][0] == "cold" else table(results)))
        return
    landscapes = [item for path in asked.files for item in read_landscapes(path)]
    if asked.what == "warm":
        results = run_warm(landscapes, range(asked.seeds + 1), WARM_EVALUATIONS, asked.processes)
        write_results(asked.out, results)
        print("\n".join(warm_table(results)))
        return
    results = run_all(landscapes, asked)
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
