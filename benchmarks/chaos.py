"""Evaluates honest and hostile candidates through the real workbench, several at a time, and counts what got lost.

    python benchmarks/chaos.py --out benchmarks/results/chaos.json        # 500 evaluations, a third of them hostile
    python benchmarks/chaos.py --evaluations 24                           # a short form

An evaluation is build, verify (screen) and, where that is passed, audit: what runs beside others in a search. Timing is
left out, because it takes the device alone by design. Honest candidates are the library's own kernel.

What an evaluation may take: a candidate that hangs, its limit and what an honest one takes; any other, what an honest
one takes. That is measured before, without hostile ones and with as many at a time. The sum of these over the lanes is
the wall time that the real one is held against.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.task import Task
from foundry.tools.grade.host.grader import Allowance
from foundry.tools.grade.host.workbench import Workbench, open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.child import descendants, usage
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return torch.tanh(x * self.gain)

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return [256]
"""
HONEST = TASK[: TASK.index("def get_inputs")].replace("class Model(", "class ModelNew(")
RESULT = "return torch.tanh(x * self.gain)"
HOSTILE_SHARE = 3  # one in three
RUN_S, LOAD_S = 1.0, 1.5
MEMORY_BYTES = 1 << 30
KILL_S = 1.0  # beyond its limit, until a candidate and all it started are gone


@dataclass(frozen=True)
class Family:
    """One way to be hostile. `outcomes`: what may be said of it; `limit_s`: the limit it runs into, or 0."""

    name: str
    code: str  # where `return torch.tanh(...)` was; {number} is the evaluation's
    outcomes: tuple[str, ...]
    limit_s: float = 0.0
    at_import: bool = False
    words: str = ""  # part of the evidence

    def text(self, number: int) -> str:
        code = self.code.replace("{number}", str(number))
        body = f"{code}\n{HONEST}" if self.at_import else HONEST.replace(RESULT, code.replace("\n", "\n        "))
        return f"{body}\nNUMBER = {number}\n"


LEFT_BEHIND = ("rejected", "cheating", "not_allowed", "crash")  # the answer is right but for what else it does
FAMILIES = (
    Family("spins", "while True: pass", ("timeout",), RUN_S, words="forward did not finish"),
    Family("sleeps", "import time; time.sleep(1e6)", ("timeout",), RUN_S, words="forward did not finish"),
    Family("hangs at import", "while True: pass", ("timeout",), LOAD_S, True, "loading the file did not finish"),
    Family(
        "ignores signals",
        "import signal, time\nfor n in range(1, 32):\n    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\n"
        "time.sleep(1e6)",
        ("timeout", "cheating", "not_allowed"),
        RUN_S,
    ),
    Family("floods", "import os\nwhile True: os.write(1, b'flood ' * 10000)", ("timeout", "crash"), RUN_S),
    Family("segfaults", "import ctypes; ctypes.string_at(0)", ("crash",), words="SIGSEGV"),
    Family("aborts at import", "import os; os.abort()", ("crash",), at_import=True, words="SIGABRT"),
    Family("exits with 0", "import os; os._exit(0)", ("crash",), words="exited with code 0"),
    Family("kills itself", "import os; os.kill(os.getpid(), 9)", ("crash",), words="SIGKILL"),
    Family("kills its parent", "import os; os.kill(os.getppid(), 9); " + RESULT, LEFT_BEHIND),
    Family("kills its group", "import os; os.killpg(0, 9)", ("crash",)),
    Family("closes its files", "import os; os.closerange(0, 4096); " + RESULT, ("crash",)),
    Family(
        "talks nonsense",
        "import os\nfor n in range(3, 64):\n    try: os.write(n, b'nonsense')\n    except OSError: pass\n" + RESULT,
        LEFT_BEHIND,
    ),
    Family("eats memory", "k = [bytearray(1 << 25) for _ in range(10**6)]", ("crash", "timeout"), RUN_S),
    Family(
        "fills the disk",
        "with open('full', 'wb') as file:\n    while True: file.write(bytes(1 << 24))",
        ("crash", "timeout"),
        RUN_S,
    ),
    Family("forks for ever", "import os\nwhile True: os.fork()", ("crash", "timeout", "cheating"), RUN_S),
    Family(
        "leaves a daemon",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1e6)\n"
        f"    os._exit(0)\n{RESULT}",
        LEFT_BEHIND,
    ),
    Family(
        "leaves threads",
        f"import threading, time\nfor _ in 'four': threading.Thread(target=time.sleep, args=(1e6,)).start()\n{RESULT}",
        LEFT_BEHIND,
    ),
    Family("raises", "raise RuntimeError('this is {number}')", ("crash", "launch_failure"), words="this is {number}"),
    Family("is wrong", "return torch.tanh(x * self.gain) + 0.01", ("wrong_result", "inaccurate")),
)


@dataclass(frozen=True)
class Result:
    """One evaluation as it came back."""

    number: int
    family: str  # "" for an honest one
    outcome: str
    evidence: str
    seconds: float


@dataclass
class Watch:
    """Peaks of this process's tree and of the scratch folder, read all the time."""

    scratch: Path
    memory_bytes: int = 0
    disk_bytes: int = 0
    tasks: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._stop.wait(0.2):
            now = usage(os.getpid())
            self.memory_bytes = max(self.memory_bytes, now.memory_bytes)
            self.tasks = max(self.tasks, now.tasks)
            self.disk_bytes = max(self.disk_bytes, folder_bytes(self.scratch))

    def stop(self) -> None:
        self._stop.set()


def folder_bytes(folder: Path) -> int:
    """What the files below take on the disk."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_blocks * 512
            except OSError:  # gone meanwhile
                continue
    return total


async def evaluate(bench: Workbench, text: str) -> tuple[str, str]:
    """Outcome ("rejected" by the audit) and evidence, as a search would read them."""
    build = await bench.build(text)
    verdict = await bench.verify(text, build, "screen")
    if not verdict.correct:
        return verdict.outcome, verdict.evidence
    audit = await bench.audit(text, build, verdict, "fair")
    failing = [gate.evidence for gate in audit.gates if not gate.passed]
    return "correct" if audit.clean else "rejected", "; ".join(failing)


async def library_kernel(bench: Workbench, task: Task) -> str:
    """The first kernel that the library makes for the task."""
    graphs = (await bench.intake()).graphs
    return lower(graphs, seeds(graphs[0], bench.device)[0], task_source=task.source, device=bench.device).source


async def a_round(bench: Workbench, honest: str, plan: Sequence[Family | None], first: int, lanes: int) -> list[Result]:
    """All evaluations of a plan, `lanes` at a time, in this order."""
    free = asyncio.Semaphore(lanes)

    async def one(number: int, family: Family | None) -> Result:
        text = family.text(number) if family else f"{honest}# number {number}\n"
        async with free:
            begun = time.monotonic()
            outcome, evidence = await evaluate(bench, text)
            return Result(number, family.name if family else "", outcome, evidence, time.monotonic() - begun)

    return list(await asyncio.gather(*(one(first + index, family) for index, family in enumerate(plan))))


def planned(evaluations: int, seed: int) -> list[Family | None]:
    """Every third one hostile, families in turn, in random order."""
    plan: list[Family | None] = [
        FAMILIES[number // HOSTILE_SHARE % len(FAMILIES)] if number % HOSTILE_SHARE == 0 else None
        for number in range(evaluations)
    ]
    random.Random(seed).shuffle(plan)
    return plan


def misjudged(result: Result, family: Family | None) -> bool:
    """Whether a result is not the one that belongs to its candidate."""
    if family is None:
        return result.outcome != "correct"
    expected = family.words.replace("{number}", str(result.number))
    return result.outcome not in family.outcomes or expected not in result.evidence


def still_there(marker: str) -> list[int]:
    """Processes, this one aside, that were started with `marker` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                body, state = (
                    (entry / "environ").read_bytes(),
                    (entry / "stat").read_text().rpartition(")")[2].split()[0],
                )
            except OSError:
                continue
            if marker.encode() in body and state != "Z":
                found.append(int(entry.name))
    return found


async def chaos(task: Task, folder: Path, evaluations: int, lanes: int, seed: int) -> dict[str, Any]:
    """Runs everything; the report."""
    plan = planned(evaluations, seed)
    allowance = Allowance(lanes=lanes, run_limit_s=RUN_S, load_limit_s=LOAD_S, memory_bytes=MEMORY_BYTES)
    bench = await open_workbench(task, describe("cpu"), folder / "scratch", seed=seed, allowance=allowance)
    watch = Watch(folder)
    watcher = threading.Thread(target=watch.run, daemon=True)
    try:
        await bench.baseline()
        honest = await library_kernel(bench, task)
        await a_round(bench, honest, [None] * (2 * lanes), 1_000_000, lanes)  # opens every lane's judge
        calm = await a_round(bench, honest, [None] * (4 * lanes), 2_000_000, lanes)
        watcher.start()
        begun = time.monotonic()
        results = await a_round(bench, honest, plan, 0, lanes)
        wall_s = time.monotonic() - begun
        workers = len(descendants(os.getpid())) - 1
    finally:
        watch.stop()
        await bench.aclose()
    honest_s = statistics.mean(result.seconds for result in calm)
    return report(plan, results, honest_s, wall_s, lanes) | {
        "isolation": list(bench.notes.isolation),
        "processes_between": workers,  # warm process, judges, the reference
        "peak_memory_mb": watch.memory_bytes >> 20,
        "peak_disk_mb": watch.disk_bytes >> 20,
        "peak_tasks": watch.tasks,
        "left_on_disk": [str(path.relative_to(folder)) for path in (folder / "scratch").rglob("*")],
    }


def report(
    plan: Sequence[Family | None], results: Sequence[Result], honest_s: float, wall_s: float, lanes: int
) -> dict[str, Any]:
    """What was lost or misjudged, and how long it took against what it may take."""
    seen = Counter(result.number for result in results)
    lost = [number for number in range(len(plan)) if seen[number] != 1]
    wrong = [asdict(result) for result in results if misjudged(result, plan[result.number])]
    allowed = [(family.limit_s + honest_s if family and family.limit_s else honest_s) for family in plan]
    over = [result.seconds - allowed[result.number] for result in results if plan[result.number]]
    rows = []
    for name in ["", *(family.name for family in FAMILIES)]:
        mine = [result for result in results if result.family == name]
        if mine:
            outcomes = dict(Counter(result.outcome for result in mine))
            seconds = [result.seconds for result in mine]
            rows.append(
                {
                    "family": name or "honest",
                    "evaluations": len(mine),
                    "outcomes": outcomes,
                    "median_s": round(statistics.median(seconds), 2),
                    "worst_s": round(max(seconds), 2),
                }
            )
    return {
        "evaluations": len(plan),
        "hostile": sum(family is not None for family in plan),
        "lanes": lanes,
        "lost": lost,
        "misjudged": wrong,
        "wall_s": round(wall_s, 1),
        "allowed_s": round(sum(allowed) / lanes, 1),
        "wall_over_allowed": round(wall_s / (sum(allowed) / lanes), 3),
        "honest_s": round(honest_s, 3),
        "worst_over_limit_s": round(max(over, default=0.0), 2),
        "run_limit_s": RUN_S,
        "load_limit_s": LOAD_S,
        "memory_limit_mb": MEMORY_BYTES >> 20,
        "families": rows,
    }


def table(found: dict[str, Any]) -> str:
    lines = ["| candidates | evaluations | outcomes | median s | worst s |", "|---|---|---|---|---|"]
    for row in found["families"]:
        outcomes = ", ".join(f"{name} {count}" for name, count in row["outcomes"].items())
        lines.append(
            f"| {row['family']} | {row['evaluations']} | {outcomes} | {row['median_s']:.2f} | {row['worst_s']:.2f} |"
        )
    lines += [
        "",
        f"{found['evaluations']} evaluations, {found['hostile']} hostile, {found['lanes']} at a time: "
        f"{len(found['lost'])} lost, {len(found['misjudged'])} misjudged, {len(found['left_running'])} processes and "
        f"{len(found['left_on_disk'])} files left",
        f"wall {found['wall_s']} s, {found['wall_over_allowed']:.2f} of what all may take over the lanes "
        f"({found['allowed_s']} s; an honest one takes {found['honest_s']:.2f} s); the worst hostile one "
        f"{found['worst_over_limit_s']} s beyond that",
        f"peaks: {found['peak_memory_mb']} MB of memory, {found['peak_disk_mb']} MB of disk, {found['peak_tasks']} "
        "processes and threads",
        "isolation: " + (", ".join(found["isolation"]) or "none"),
    ]
    return "\n".join(lines)


def is_sound(found: dict[str, Any]) -> bool:
    """Nothing lost, misjudged or left behind; how long it took is for the reader to judge."""
    return not any(found[name] for name in ("lost", "misjudged", "left_running", "left_on_disk"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--evaluations", type=int, default=500)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="foundry-chaos-") as name:
        folder = Path(name)
        # Locks and builds of its own: nobody else's timing is waited for, and the processes are known by it.
        os.environ |= {"FOUNDRY_HOME": str(folder / "home"), "FOUNDRY_BUILD_CACHE": str(folder / "builds")}
        (folder / "tanh.py").write_text(TASK)
        task = read_task(folder / "tanh.py")
        found = asyncio.run(chaos(task, folder, arguments.evaluations, arguments.lanes, arguments.seed))
        deadline = time.monotonic() + KILL_S
        while (left := still_there(str(folder))) and time.monotonic() < deadline:
            time.sleep(0.05)
        found["left_running"] = left
    print(table(found))
    for result in found["misjudged"]:
        print(f"misjudged: {result}", file=sys.stderr)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if is_sound(found) else 1)


if __name__ == "__main__":
    main()
