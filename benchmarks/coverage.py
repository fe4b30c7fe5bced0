"""Are the intervals honest? Times PyTorch against itself, many times, and counts how often the interval holds 1.

    python benchmarks/coverage.py --trials 400 --stage screen --out benchmarks/results/coverage-screen.jsonl
    python benchmarks/coverage.py --trials 400 --stage full --out benchmarks/results/coverage-full.jsonl
    python benchmarks/coverage.py --target cuda --work short,middle,long --seconds 140 --out coverage-h200.jsonl
    python benchmarks/coverage.py --report benchmarks/results/coverage-screen.jsonl

The candidate is the task's own module under the name ModelNew, timed as any candidate is: by the workbench, under the
device lock, in fresh processes. Several works on a GPU take turns: while one trial is timed, others prepare. A 95 %
interval should hold the true ratio, 1, in 95 of 100 trials: fewer are claims that the measurement does not carry, more
are intervals wider than they need to be. One JSON line a trial is appended to the file, and a second call goes on where
the first one stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import secrets
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from foundry.knowledge.candidate import Build, Stage, Timing
from foundry.knowledge.task import Task
from foundry.tools.grade.host.grader import thread_count
from foundry.tools.grade.host.workbench import LocalWorkbench, open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x, y):
        return F.gelu(self.norm(x)) + y


def get_inputs():
    return [torch.randn(1024, 512), torch.randn(1024, 512)]


def get_init_inputs():
    return [512]
"""
_HEAD = (
    "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n    def forward(self, *inputs):\n        return "
)
WORKS = {  # on an H200 15 us of three kernels, 150 us of one that waits for memory, 5 ms of one that computes
    "short": TASK,
    "middle": _HEAD + "torch.softmax(inputs[0], 1)\n\ndef get_inputs():\n    return [torch.randn(4096, 16384)]\n",
    "long": _HEAD
    + "torch.matmul(*inputs)\n\ndef get_inputs():\n    return [torch.randn(8192, 8192), torch.randn(8192, 16384)]\n",
}
AT_ONCE = {"cpu": 2, "cuda": 4}  # trials of a work that are under way together; they are timed one after the other
TELL_EVERY = 10  # trials of a work
LOADED = Build(ok=True, seconds=0.0, artifact="none")  # nothing to compile, so little time to load
Z = statistics.NormalDist().inv_cdf(0.975)


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927)."""
    share = hits / trials
    middle = (share + Z * Z / (2 * trials)) / (1 + Z * Z / trials)
    half = Z / (1 + Z * Z / trials) * math.sqrt(share * (1 - share) / trials + Z * Z / (4 * trials * trials))
    return middle - half, middle + half


def shown(rows: list[dict[str, Any]]) -> str:
    """How many intervals hold the truth, in one line."""
    timed = [row for row in rows if not row["problem"]]
    if not timed:
        return "no trial gave a time"
    hits = sum(row["low"] <= 1.0 <= row["high"] for row in timed)
    low, high = wilson(hits, len(timed))
    return (
        f"{rows[0]['stage']} of {rows[0].get('work', 'short')} work: {hits} of {len(timed)} intervals hold 1: "
        f"{100 * hits / len(timed):.1f} % (95 % interval of that share {100 * low:.1f} to {100 * high:.1f} %)"
    )


def report(rows: list[dict[str, Any]]) -> str:
    """The answer in words, for each work of one stage."""
    works = dict.fromkeys(row.get("work", "short") for row in rows)
    parts = [report_of([row for row in rows if row.get("work", "short") == work]) for work in works]
    return "\n".join([*parts, *(["all: " + shown([{**row, "work": "all"} for row in rows])] if len(parts) > 1 else [])])


def report_of(rows: list[dict[str, Any]]) -> str:
    """The answer in words, for one work."""
    timed = [row for row in rows if not row["problem"]]
    if not timed:
        return "\n".join([shown(rows), *(row["problem"] for row in rows)])
    logs = [math.log(row["ratio"]) for row in timed]
    half = statistics.median((row["high"] - row["low"]) / 2 / row["ratio"] for row in timed)
    lines = [
        shown(rows),
        f"median half width {100 * half:.2f} %, median ratio {math.exp(statistics.median(logs)):.4f}, "
        f"spread of the ratio {100 * statistics.pstdev(logs):.2f} %",
        f"{statistics.median(row['seconds'] for row in timed):.2f} s a trial, "
        f"load beside it {statistics.median(row['load'] for row in timed):.1f}",
    ]
    lines += [f"no time: {row['problem']}" for row in rows if row["problem"]]
    remarked = sum(bool(row["remarks"]) for row in timed)
    return "\n".join([*lines, *([f"{remarked} with remarks"] if remarked else [])])


def row_of(timing: Timing, seconds: float) -> dict[str, Any]:
    low, high = timing.speedup_ci95
    return {
        "stage": timing.stage,
        "ratio": round(timing.speedup, 6),
        "low": round(low, 6),
        "high": round(high, 6),
        "baseline_ms": round(timing.baseline_ms, 6),
        "pairs": timing.pairs,
        "noise": round(timing.noise, 4),
        "wall_ratio": round(timing.wall_ratio, 4),
        "ratios": [round(ratio, 5) for ratio in timing.ratios],
        "samples": [[round(one, 5), round(other, 5)] for one, other in timing.samples],
        "remarks": list(timing.remarks),
        "problem": timing.problem,
        "seconds": round(seconds, 3),
        "load": round(os.getloadavg()[0], 2),
    }


@dataclass
class Series:
    """The trials of one work, on workbenches of their own."""

    work: str
    text: str
    rows: list[dict[str, Any]]
    begun: int
    benches: list[LocalWorkbench] = field(default_factory=list)

    async def one(self, bench: LocalWorkbench, stage: Stage) -> dict[str, Any]:
        self.begun += 1
        start = time.monotonic()
        timing = await bench.time(f"{self.text}\n# {self.begun}\n", LOADED, stage)
        row = {"work": self.work, **row_of(timing, time.monotonic() - start)}
        self.rows.append(row)
        return row

    async def go_on(self, bench: LocalWorkbench, arguments: argparse.Namespace, until: float, out: TextIO) -> None:
        """One trial after another, beside other callers of this."""
        while self.begun < arguments.trials and time.monotonic() < until:
            out.write(json.dumps(await self.one(bench, arguments.stage)) + "\n")
            out.flush()
            if len(self.rows) % TELL_EVERY == 0:
                print(shown(self.rows), flush=True)


async def measure(tasks: dict[str, Task], arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    until, at_once = time.monotonic() + arguments.seconds, arguments.at_once or AT_ONCE[arguments.target]
    device = describe(arguments.target)
    zygote = Zygote.begin(threads=thread_count(device))
    series: list[Series] = []
    with tempfile.TemporaryDirectory(prefix="foundry-coverage-") as scratch, arguments.out.open("a") as out:
        try:
            for work, task in tasks.items():
                known = [row for row in rows if row.get("work", "short") == work]
                text = task.source.replace("class Model(", "class ModelNew(")
                series.append(Series(work, text, known, len(known)))

            async def open_one(one: Series, number: int) -> None:
                folder = Path(scratch) / f"{one.work}-{number}"
                folder.mkdir()
                seed = secrets.randbits(30)
                bench = await open_workbench(tasks[one.work], device, folder, seed=seed, zygote=zygote)
                one.benches.append(bench)
                await bench.baseline()

            await asyncio.gather(*(open_one(one, number) for one in series for number in range(arguments.benches)))
            lines = [(one, bench) for one in series for bench in one.benches for _ in range(at_once)]
            await asyncio.gather(*(one.go_on(bench, arguments, until, out) for one, bench in lines))
        finally:
            await asyncio.gather(*(bench.aclose() for one in series for bench in one.benches))
            zygote.close()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=400, help="of each work")
    parser.add_argument("--stage", choices=("screen", "full", "final"), default="screen")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path, help="only say what a file shows")
    parser.add_argument("--task", type=Path, help="another task file")
    parser.add_argument("--work", default="short", help=f"how long a call takes: some of {','.join(WORKS)}")
    parser.add_argument("--benches", type=int, default=1, help="workbenches of a work, each with a history of its own")
    parser.add_argument("--at-once", type=int, default=0, help="trials that are under way on a workbench")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="no trial begins after so long, preparation included"
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    if arguments.report is not None:
        print(report(read(arguments.report)))
        return
    if arguments.out is None:
        parser.error("--out FILE is needed to measure")
    rows = read(arguments.out)
    if any(row["stage"] != arguments.stage for row in rows):
        parser.error(f"{arguments.out} holds another stage's trials")
    works = arguments.work.split(",")
    if wrong := [work for work in works if work not in WORKS]:
        parser.error(f"--work {wrong[0]}: there are {', '.join(WORKS)}")
    with tempfile.TemporaryDirectory() as folder:
        tasks: dict[str, Task] = {}
        for work in works:
            place = Path(folder) / f"{work}.py"
            place.write_text(arguments.task.read_text() if arguments.task else WORKS[work])
            tasks[work] = read_task(place)
        asyncio.run(measure(tasks, arguments, rows))
    print(report(read(arguments.out)))


if __name__ == "__main__":
    main()
