"""Are the library's first kernels for every task right, and how fast at a first look? A wide net before a bench:

    python benchmarks/kernelbench_survey.py --root ../KernelBench --levels 1,2 --out survey --lanes 2
    python benchmarks/kernelbench_survey.py --root ../KernelBench --levels 1,2 --every 4 --shard 1/2 --out survey
    python benchmarks/kernelbench_survey.py --report survey

Each task is taken in, its first recipe is built and verified as a finalist is (the next where that is wrong), audited
and timed as the search does it: no search, no proof, no rivals, nothing that is a result. What was asked before is not
asked again. Tasks that need more than a lane's part of the GPU follow one at a time. A line of JSON a task, in the
folder's file.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from foundry.graph.doors.bench.bench import places_of
from foundry.graph.doors.bench.request import BenchRequest, levels_of, shard_of
from foundry.graph.doors.bench.tasks import BenchTask, find_tasks, mixed
from foundry.knowledge.candidate import Build, Recipe, Verdict
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.device import TargetName
from foundry.knowledge.errors import FoundryError, RandomTask, TellsNothing, TooLarge
from foundry.tools.grade.host.workbench import LocalWorkbench, open_workbench
from foundry.tools.machine.ceilings import measure_alone
from foundry.tools.machine.device import describe, usable_cores
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

TASK_S = 90.0  # after which a task is given up
TRIED = 3  # recipes of a task, until one is right
RESULTS, SHARED = "survey.jsonl", "FOUNDRY_SURVEY_SHARED"


@dataclass
class Row:
    """One task. `step` is the last that was begun; `outcome` "correct" means that it went through all of them."""

    task: str
    outcome: str = ""
    evidence: str = ""
    step: str = ""
    label: str = ""
    accuracy: str = ""
    recipe: int = 0  # which of the library's was judged last, in the order in which a run would
    refused: list[str] = field(default_factory=list)  # what was said of those before
    speedup: float | None = None
    eager_ms: float | None = None
    ours_ms: float | None = None
    seconds: float = 0.0
    steps_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def at(self, step: str) -> Iterator[None]:
        self.step, start = step, time.monotonic()
        try:
            yield
        finally:
            self.steps_s[step] = round(self.steps_s.get(step, 0.0) + time.monotonic() - start, 2)


async def survey(task: BenchTask, target: TargetName, folder: Path, zygote: Zygote, is_thorough: bool) -> Row:
    """Raises TooLarge."""
    row, start = Row(task.name), time.monotonic()
    bench: LocalWorkbench | None = None
    try:
        device = await measure_alone(describe(target))
        bench = await open_workbench(read_task(Path(task.path)), device, folder, seed=0, zygote=zygote)
        await asyncio.wait_for(walk(row, task, bench, is_thorough), TASK_S)
    except TooLarge:
        raise
    except (RandomTask, TellsNothing) as error:
        row.outcome, row.evidence = "not counted", str(error)
    except FoundryError as error:
        row.outcome, row.evidence = "failed", str(error)
    except TimeoutError:
        row.outcome, row.evidence = "too long", f"not done within {TASK_S:g} s"
    except Exception as error:
        row.outcome, row.evidence = "internal error", f"{type(error).__name__}: {error}"[:400]
    finally:
        if bench is not None:
            with suppress(Exception):
                await bench.aclose()
    row.seconds = round(time.monotonic() - start, 2)
    return row


async def walk(row: Row, task: BenchTask, bench: LocalWorkbench, is_thorough: bool) -> None:
    with row.at("intake"):
        known = await bench.intake()
    if not known.graphs:
        row.outcome, row.evidence = "not captured", known.capture_note
        return
    with row.at("baseline"):
        baseline = await bench.baseline()
    row.eager_ms, row.label = baseline.eager_ms, baseline.label
    if baseline.degenerate:
        row.outcome, row.evidence = "not counted", baseline.degenerate
        return
    recipes = seeds(known.graphs[0], bench.device, baseline.unrounded_in(known.graphs[0]))
    for row.recipe, recipe in enumerate(recipes):
        text, build, verdict = await verified(row, task, bench, recipe)
        if verdict.correct or row.recipe + 1 == TRIED:
            break
        row.refused += [f"{verdict.outcome}: {verdict.evidence}"[:200]]
    row.outcome, row.evidence, row.accuracy = verdict.outcome, verdict.evidence, verdict.accuracy_class or ""
    if not verdict.correct:
        return
    with row.at("audit"):
        asked = verdict if is_thorough else replace(verdict, stage="screen")
        audit = await bench.audit(text, build, asked, "fair")
    if not audit.clean:
        row.outcome = "audit"
        row.evidence = "; ".join(f"{gate.gate}: {gate.evidence}" for gate in audit.gates if not gate.passed)[:400]
        return
    with row.at("time"):
        timing = await bench.time(text, build, "screen")
    row.speedup, row.ours_ms = timing.speedup, timing.candidate_ms
    if timing.problem:
        row.outcome, row.evidence = f"timing: {timing.outcome}", timing.problem


async def verified(row: Row, task: BenchTask, bench: LocalWorkbench, recipe: Recipe) -> tuple[str, Build, Verdict]:
    """A recipe's text, built and judged as a finalist's is."""
    known = await bench.intake()
    source = read_task(Path(task.path)).source
    with row.at("build"):
        lowered = await asyncio.to_thread(lower, known.graphs, recipe, task_source=source, device=bench.device)
        build = await bench.build(lowered.source)
    with row.at("verify"):
        return lowered.source, build, await bench.verify(lowered.source, build, "final")


async def lane(asked: argparse.Namespace, tasks: list[BenchTask], *, is_shared: bool) -> None:
    """Surveys what no other lane has taken. Where the GPU is shared, what does not fit is left for later."""
    zygote = Zygote.begin(threads=min(8, usable_cores()))
    try:
        for task in tasks:
            claim = asked.out / "claims" / task.name.replace("/", "_")
            later = claim.with_suffix(".later")
            if not is_shared and later.exists():
                claim = claim.with_suffix(".alone")
            try:
                os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            with tempfile.TemporaryDirectory(prefix="survey-") as folder:
                try:
                    row = await survey(task, asked.target, Path(folder), zygote, asked.thorough)
                except TooLarge as error:
                    if is_shared:
                        later.touch()
                        continue
                    row = Row(task.name, "failed", str(error), "intake")
            append(asked.out / RESULTS, row)
            print(line_of(asdict(row)), flush=True)
    finally:
        zygote.close()


def append(path: Path, row: Row) -> None:
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.write(json.dumps(asdict(row)) + "\n")


def line_of(row: dict[str, Any]) -> str:
    took = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["steps_s"].items())
    said = f"{row['speedup']:.2f}x, {row['ours_ms']:.3f} ms for" if row["speedup"] else row["evidence"][:300]
    eager = f" {row['eager_ms']:.3f} eager" if row["eager_ms"] else ""
    label = f" [{row['label']}]" if row["label"] else ""
    return f"{row['task']}: {row['outcome']} {row['accuracy']} {said}{eager}{label}, {row['seconds']:.1f} s: {took}"


def report(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    counted = [row for row in rows if row["outcome"] != "not counted"]
    right = [row for row in counted if row["outcome"] == "correct" and row["speedup"]]
    print(f"{len(rows)} tasks, {len(counted)} count, {len(right)} right; ", end="")
    if right:
        mean = math.exp(statistics.fmean(math.log(row["speedup"]) for row in right))
        print(f"geomean {mean:.2f}x, {sum(row['speedup'] > 1 for row in right)} faster than eager; ", end="")
    print(f"median {statistics.median(row['seconds'] for row in rows):.1f} s a task")
    steps = {name for row in rows for name in row["steps_s"]}
    medians = {name: statistics.median(row["steps_s"].get(name, 0.0) for row in rows) for name in steps}
    print("medians:", ", ".join(f"{name} {seconds:.1f}" for name, seconds in sorted(medians.items())))
    for row in rows:
        if row["outcome"] not in ("correct", "not counted"):
            print(f"  {row['task']}: {row['outcome']} at {row['step']}: {row['evidence'][:400]}")
    for row in sorted(right, key=lambda row: float(row["speedup"])):
        if row["speedup"] < 1:
            print(f"  {row['task']}: {row['speedup']:.2f}x, {row['ours_ms']:.3f} ms for {row['eager_ms']:.3f}")


def main() -> None:
    asked = arguments()
    if asked.report:
        report(asked.report / RESULTS)
        return
    request = BenchRequest(
        str(asked.root),
        str(asked.out),
        levels_of(asked.levels) if asked.levels else (),
        asked.target,
        only=asked.only,
        every=asked.every,
        shard=shard_of(asked.shard),
    )
    (asked.out / "claims").mkdir(parents=True, exist_ok=True)
    tasks = find_tasks(request)
    if asked.mixed:
        tasks = [task for level in groupby(tasks, key=lambda task: task.group) for task in mixed(list(level[1]))]
    if SHARED in os.environ or asked.lanes == 1:
        asyncio.run(lane(asked, tasks, is_shared=SHARED in os.environ))
        return
    again = [sys.executable, __file__, *sys.argv[1:]]
    places = places_of(request, "", asked.lanes)
    started = [subprocess.Popen(again, env={**os.environ, **place, SHARED: "1"}) for place in places]
    for one in started:
        one.wait()
    asyncio.run(lane(asked, tasks, is_shared=False))
    report(asked.out / RESULTS)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--levels", default="1,2", help='"" where --root is a folder of task files')
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--only", default="", help="tasks whose names hold it")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--shard", default="1/1", metavar="I/N")
    parser.add_argument("--mixed", action="store_true", help="each level in an order whose every beginning is spread")
    parser.add_argument("--thorough", action="store_true", help="audited as a finalist is: further runs, the sanitizer")
    parser.add_argument("--lanes", type=int, default=1, help="tasks at a time on the GPU, which share its memory")
    parser.add_argument("--out", type=Path, default=Path("survey"))
    parser.add_argument("--report", type=Path, help="only sums such a folder up")
    return parser.parse_args()


if __name__ == "__main__":
    main()
