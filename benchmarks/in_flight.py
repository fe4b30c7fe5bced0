"""How many evaluations a minute a search makes with one, two and three steps of each island at a time.

python benchmarks/in_flight.py --tasks examples/rmsnorm_residual.py   # on this machine
python benchmarks/in_flight.py --answer-seconds 2                     # with a model as slow as that
python benchmarks/in_flight.py --landscapes benchmarks/results/landscapes-h200.jsonl   # what an evaluation is worth

Without a task the machine is one that only waits: each step takes what it took in the median on an H200, and the
device is held alone to time. So the figures say how steps overlap, whatever else this machine does. The real search in
this process, in turns; the model is a scripted server that chooses moves at random. Who thinks while others are in
flight knows less: on landscapes, how many evaluations a search needs then to 95 % of the best known.
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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replayed import RecordedLibrary, run_search
from search import EVALUATIONS, Result, read_landscapes
from tests.agents.chat.scripted_server import Reply, Request, ScriptedServer, answer
from tests.graph.conftest import FakeParts, FakeWorkbench

from foundry.agents.chat.options import ChatOptions
from foundry.agents.models.brain import open_models
from foundry.agents.models.models import Models, one_model
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import EFFORTS, QUICK, RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import solve
from foundry.knowledge.candidate import Build, Stage, Timing, Verdict

WARM_S = 12.0  # of the first search, in which clients are imported
MOVES = 10  # of those that a prompt lists, from which the model chooses
EFFORTS["quick"] = replace(QUICK, seeds=1, proofs=0, tune_s=0.0, plateau=10_000, floor_trusted=10_000, counted=0)
BUILD_S, VERIFY_S, TIME_S, ALONE_S = 1.2, 0.5, 1.2, 0.3  # one step of the search on an H200, and while it is held alone


class WaitingWorkbench(FakeWorkbench):
    """Answers from arithmetic, after as long as a GPU takes."""

    def __init__(self) -> None:
        super().__init__()
        self._alone = asyncio.Lock()

    async def build(self, text: str) -> Build:
        await asyncio.sleep(BUILD_S)
        return await super().build(text)

    async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
        await asyncio.sleep(VERIFY_S)
        return await super().verify(text, build, stage)

    async def time(self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None) -> Timing:
        await asyncio.sleep(TIME_S)
        async with self._alone:
            await asyncio.sleep(ALONE_S)
        return await super().time(text, build, stage, incumbent_ms=incumbent_ms)


class WaitingParts(FakeParts):
    """A machine that waits; the model, if one is asked for, through the real client."""

    def __init__(self) -> None:
        super().__init__(WaitingWorkbench())

    def brain(self, request: SolveRequest, thinking: Any, listener: Any) -> Any:
        if not request.models:
            return super().brain(request, thinking, listener)
        return open_models(request.models, ledger=thinking, playbook=PlaybookBrain(self._library), listener=listener)


def slow_model(seconds: float) -> ScriptedServer:
    """A server whose model takes so long for each answer, and chooses two moves at random."""
    stream = random.Random(0)

    def choose(_: Request) -> Reply:
        moves = stream.sample(range(MOVES), 2)
        step = {"rationale": "drawn", "expected": "1.1x", "moves": moves, "edits": [], "source": "", "cites": []}
        return answer(step, wait_s=seconds)

    return ScriptedServer([choose]).start()


def search(request: SolveRequest, parts: Parts, seconds: float) -> float:
    """Evaluations a minute of the islands of one search, which is stopped after so many seconds of islands."""

    async def limited() -> None:
        stop = asyncio.Event()
        begun: list[asyncio.TimerHandle] = []

        def hear(event: Event) -> None:
            if event.island is not None and event.island >= 0 and not begun:
                begun.append(asyncio.get_running_loop().call_later(seconds, stop.set))

        await solve(request, hear, stop=stop, parts=parts)

    asyncio.run(limited())
    run = RunDirectory.inspect(next(Path(request.runs).iterdir()))
    events = EventLog(run.database, reading=True).read("evaluation")
    run.close()
    return 60.0 * sum(event.island is not None and event.island >= 0 for event in events) / seconds


def measure(asked: argparse.Namespace, models: Models) -> dict[int, list[float]]:
    """Evaluations a minute by steps at a time, in turns; what the first search imports is none's fault."""
    with tempfile.TemporaryDirectory(prefix="foundry-flight-") as folder:
        warm = SolveRequest("relu_add.py", learn=False, runs=folder, rivals=(), models=models, in_flight=1)
        search(warm, WaitingParts(), WARM_S)
    found: dict[int, list[float]] = {int(word): [] for word in asked.strands.split(",")}
    for seed in range(asked.rounds):
        for task in asked.tasks or ["relu_add.py"]:
            for strands in random.Random(seed).sample(list(found), len(found)):
                with tempfile.TemporaryDirectory(prefix="foundry-flight-") as folder:
                    plain = SolveRequest(task, seed=seed, islands=asked.islands, limits=RunLimits(10_000, 60.0))
                    request = replace(plain, learn=False, runs=folder, rivals=(), models=models, in_flight=strands)
                    rate = search(request, Parts() if asked.tasks else WaitingParts(), asked.seconds)
                found[strands].append(rate)
                print(f"{task} {strands} at a time: {rate:.1f} a minute, load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def needed(files: Sequence[Path], islands: int, strands: Sequence[int], rounds: int) -> dict[int, list[float]]:
    """Evaluations to near the best known by steps at a time, each task from as many starts."""
    found: dict[int, list[float]] = {one: [] for one in strands}
    for seed in range(1, rounds + 1):
        for landscape in [item for file in files for item in read_landscapes(file)]:
            library = RecordedLibrary(landscape)
            library.start = library.draw_start(seed)
            for one in strands:
                trail = asyncio.run(run_search(library, seed, EVALUATIONS, islands=islands, in_flight=one))
                result = Result(str(one), landscape.task, seed, tuple(trail.curve(EVALUATIONS)))
                found[one].append(result.evaluations)
                print(f"{landscape.task} {one} at a time: {result.evaluations} evaluations", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=[])
    parser.add_argument("--landscapes", nargs="*", type=Path, default=[])
    parser.add_argument("--strands", default="1,2,3")
    parser.add_argument("--islands", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--answer-seconds", type=float, default=0.0)
    parser.add_argument("--parallel-calls", type=int, default=ChatOptions().parallel)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    server = slow_model(asked.answer_seconds) if asked.answer_seconds else None
    options = ChatOptions(parallel=asked.parallel_calls, tool_calls=0)
    if asked.landscapes:
        found = needed(asked.landscapes, asked.islands, [int(word) for word in asked.strands.split(",")], asked.rounds)
    else:
        found = measure(asked, one_model("scripted-1", server.url, options) if server else Models())
    if server:
        server.stop()
    for strands, rates in sorted(found.items()):
        print(f"| {strands} | {statistics.mean(rates):.1f} | {min(rates):.1f} to {max(rates):.1f} |")
    if asked.out:
        asked.out.write_text(json.dumps({**vars(asked), "found": found}, default=str, indent=1) + "\n")


if __name__ == "__main__":
    main()
