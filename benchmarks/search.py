"""What each part of the search brings, on landscapes of recorded times: no device, the real search.

python benchmarks/search.py run FILE... --seeds 5 --evaluations 24 --out benchmarks/results/search.json
python benchmarks/search.py table benchmarks/results/search.json

Every variant searches the same tasks from the same random starts, with the same noise of each timing, so that
differences are paired. The whole recalls what a few searches of each other task left in the store, never of the task
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

from foundry.graph.run.request import StrategyName
from foundry.knowledge.candidate import Build, Recipe
from foundry.knowledge.compiler import moves as kernel_library
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.experience.journal import LessonJournal
from foundry.knowledge.experience.record import ExperienceRecord

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
WHOLE, COLD, SHUFFLED = "the whole", "without experience", "with shuffled experience"
LONG = ("random", "coordinate descent", WHOLE, COLD)
BLIND = "without estimates"
STRATEGIES: tuple[StrategyName, ...] = ("archive", "gradients", "migration", "roles", "credits")
ISLANDS = (1, 4)
RESAMPLED = 4000
TEACHERS = 3  # cold searches of each other task that the experience is from, with stores of their own
EARLY = (4, 8, 16, 24)  # evaluations after which a warm start is compared with a cold one


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
JOURNALS: dict[int, tuple[Sequence[ExperienceRecord], bytes]] = {}  # by the identity of what they hold
Variant = Callable[[RecordedLibrary, int, int, Sequence[ExperienceRecord]], Coroutine[Any, Any, Trail]]


async def recall_and_search(
    library: RecordedLibrary,
    seed: int,
    evaluations: int,
    records: Sequence[ExperienceRecord],
    strategies: tuple[StrategyName, ...] = (),
    islands: int | None = None,
    blind: bool = False,
) -> Trail:
    """The real search with a store of its own that holds these records."""
    with tempfile.TemporaryDirectory(prefix="foundry-store-", dir=memory()) as folder:
        (Path(folder) / "journal.sqlite").write_bytes(journal_of(records))
        return await run_search(
            library, seed, evaluations, store=Path(folder), strategies=strategies, islands=islands, blind=blind
        )


def journal_of(records: Sequence[ExperienceRecord]) -> bytes:
    """The file of a journal that holds these records, made once."""
    if id(records) not in JOURNALS:
        with tempfile.TemporaryDirectory(prefix="foundry-store-", dir=memory()) as folder:
            path = Path(folder) / "journal.sqlite"
            journal = LessonJournal(path)
            journal.append(records)
            journal.close()
            JOURNALS[id(records)] = records, path.read_bytes()
    return JOURNALS[id(records)][1]


async def recall_shuffled(
    library: RecordedLibrary, seed: int, evaluations: int, records: Sequence[ExperienceRecord]
) -> Trail:
    """The real search with a store in which what came of each step was dealt anew."""
    return await recall_and_search(library, seed, evaluations, shuffled(records, seed))


def _alone(search: Callable[[RecordedLibrary, int, int], Coroutine[Any, Any, Trail]]) -> Variant:
    """A search that recalls nothing."""
    return lambda library, seed, evaluations, _: search(library, seed, evaluations)


def variants() -> dict[str, Variant]:
    found: dict[str, Variant] = {"random": _alone(search_randomly), "coordinate descent": _alone(descend)}
    found[WHOLE] = recall_and_search
    found[COLD] = _alone(run_search)
    found[SHUFFLED] = recall_shuffled
    found[BLIND] = partial(recall_and_search, blind=True)
    for name in STRATEGIES:
        found[f"with {name}"] = partial(recall_and_search, strategies=(name,))
    found["with gradients and migration"] = partial(recall_and_search, strategies=("gradients", "migration"))
    for islands in ISLANDS:
        found[f"{islands} islands"] = partial(recall_and_search, islands=islands)
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
    return teach_and_tell(landscape, seed, evaluations)[0]


def teach_and_tell(landscape: Landscape, seed: int, evaluations: int) -> tuple[list[ExperienceRecord], Result]:
    library = PRINTED.setdefault(landscape.task, RecordedLibrary(landscape))
    library.start = library.draw_start(seed)
    with tempfile.TemporaryDirectory(prefix="foundry-store-", dir=memory()) as folder:
        store = Path(folder)
        trail = asyncio.run(run_search(library, seed, evaluations, store=store))
        records = [record for _, record in LessonJournal(store / "journal.sqlite").after(0)]
        return records, Result(COLD, landscape.task, seed, tuple(trail.curve(evaluations)))


def teach_often(landscape: Landscape, teachers: int) -> tuple[list[ExperienceRecord], list[Result]]:
    """What cold searches of a task from its first starts leave, each with a store of its own; and how they went."""
    taught = [teach_and_tell(landscape, seed, TEACHING) for seed in range(1, teachers + 1)]
    return [record for records, _ in taught for record in records], [result for _, result in taught]


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


def learn_of_others(
    landscapes: Sequence[Landscape], teachers: int, pool: ProcessPoolExecutor
) -> tuple[list[tuple[Landscape, list[ExperienceRecord]]], list[Result]]:
    """Each task with what cold searches of all others left in the store, and these searches."""
    taught = list(pool.map(teach_often, landscapes, [teachers] * len(landscapes)))
    others = []
    for item in landscapes:
        foreign = [records for other, (records, _) in zip(landscapes, taught, strict=True) if other is not item]
        others.append((item, [record for records in foreign for record in records]))
    return others, [result for _, results in taught for result in results]


def run_all(landscapes: Sequence[Landscape], asked: argparse.Namespace) -> list[Result]:
    """Task after task, each from all its starts; those starts first from which others were taught, without
    experience."""
    began = time.monotonic()
    turns = [turn.split(",") for turn in asked.variants.split(";")] if asked.variants else [list(variants())]
    starts = [range(1, asked.teachers + 1), range(asked.teachers + 1, asked.seeds + 1)]
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        others, found = learn_of_others(landscapes, asked.teachers, pool)
        print(f"taught at {time.monotonic() - began:.0f} s", flush=True)
        write_results(asked.out, found)
        waiting = [
            (item, pool.submit(work, item, known, names, _missing(names, seeds), asked.evaluations))
            for seeds in starts
            for names in turns
            for item, known in others
            if not asked.tasks or item.task in asked.tasks.split(",")
        ]
        for item, future in waiting:
            found += future.result()
            print(f"{item.task} at {time.monotonic() - began:.0f} s", flush=True)
            write_results(asked.out, found)
    return found


def _missing(names: Sequence[str], seeds: range) -> range:
    """The starts that are searched: without experience those of the teaching searches are known."""
    return range(0) if list(names) == [COLD] and seeds.start == 1 else seeds


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


def warm_table(results: Sequence[Result], keep: Callable[[Result], bool]) -> list[str]:
    """How many times as fast what was found after a few evaluations is as what the cold start had found."""
    lines = []
    for name in (WHOLE, SHUFFLED):
        pairs = pairs_of(results, name, COLD, keep)
        for count in EARLY if pairs else ():
            gains = np.array([[_lead(mine, theirs, count) for mine, theirs in found] for found in pairs.values()])
            tasks, seeds = gains.shape
            stream = np.random.default_rng(0)
            chosen = stream.integers(tasks, size=(RESAMPLED, tasks, 1))
            drawn = gains[chosen, stream.integers(seeds, size=(RESAMPLED, tasks, seeds))].mean(axis=(1, 2))
            low, high = _interval(list(drawn))
            lines.append(
                f"| {name} beside {COLD} | {count} | {math.exp(gains.mean()):.3f} [{math.exp(low):.3f},"
                f" {math.exp(high):.3f}] | {int((gains > 0).sum())}:{int((gains < 0).sum())} |"
            )
    return lines


def _lead(mine: Result, theirs: Result, count: int) -> float:
    """The logarithm of the ratio of what two searches had found after so many evaluations."""
    return math.log(mine.curve[min(count, len(mine.curve)) - 1] / theirs.curve[min(count, len(theirs.curve)) - 1])


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
        lines += warm_table(chosen, keep)
    return lines


def write_results(path: Path | None, results: Sequence[Result]) -> None:
    if path:
        rows = [[item.variant, item.task, item.seed, [round(value, 3) for value in item.curve]] for item in results]
        path.write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--variants", default="", help="A,B;C: A and B of all tasks, then C.")
    parser.add_argument("--tasks", default="", help="Of these files, to search; all of them teach.")
    parser.add_argument("--teachers", type=int, default=TEACHERS)
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.what == "table":
        rows = [row for path in asked.files for row in json.loads(path.read_text())]
        results = [Result(row[0], row[1], row[2], tuple(row[3])) for row in rows]
        print("\n".join(table(results)))
        return
    landscapes = [item for path in asked.files for item in read_landscapes(path)]
    results = run_all(landscapes, asked)
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
