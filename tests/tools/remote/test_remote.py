"""A workbench in another process, with folders of its own, rules as one in this process does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from foundry.knowledge.candidate import Candidate, Evaluation
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.errors import FoundryError, TaskError
from foundry.knowledge.ruling import rule
from foundry.knowledge.task import Task
from foundry.tools.grade.host.examine import Step, examine
from foundry.tools.grade.host.workbench import Workbench, open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.remote.client import RemoteWorkbench
from foundry.tools.task.file import read_task

Record = TypeVar("Record")
TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(512))

    def forward(self, x):
        return torch.tanh(x * self.gain) * 0.5

def get_inputs():
    return [torch.randn(1024, 512)]
"""
IN_TORCH = TASK.replace("class Model(", "class ModelNew(")
WRONG = IN_TORCH.replace("* 0.5", "* 0.6")


@pytest.fixture(scope="module", autouse=True)
def home(make_home: Callable[[], Path]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_HOME", str(make_home()))
        yield


@pytest.fixture
def place(make_home: Callable[[], Path], tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing that Foundry writes is shared with this process."""
    own = tmp_path / "elsewhere"
    own.mkdir()
    names = {"HOME": own, "TMPDIR": own, "FOUNDRY_BUILD_CACHE": own / "builds", "FOUNDRY_HOME": make_home()}
    return {name: str(path) for name, path in names.items()}


def read_once(folder: Path, source: str) -> Task:
    """A task whose file is not there any more."""
    file = folder / "gated.py"
    file.write_text(source)
    task = read_task(file)
    file.unlink()
    return task


async def evaluated(bench: Workbench, text: str, lowered: Lowered | None) -> Evaluation:
    async def ask(step: Step, shape: type[Record], work: Callable[[Workbench], Awaitable[Record]]) -> Record:
        return await work(bench)

    candidate = Candidate("c1", 0, 0, "cpu", "user", "")
    return await examine(candidate, text, "screen", "fair", ask, lowered=lowered)


@pytest.mark.slow  # two warm processes, and every step of three candidates twice
async def test_it_rules_as_one_in_this_process_does(place: dict[str, str], zygote: Zygote, tmp_path: Path) -> None:
    task, device = read_once(tmp_path, TASK), describe("cpu")
    here = await open_workbench(task, device, tmp_path / "scratch", seed=3, zygote=zygote)
    there = await RemoteWorkbench.open(task, "cpu", seed=3, place=place, folder=Path(place["HOME"]))
    try:
        assert there.device.key == device.key
        intake = await there.intake()
        assert there.notes.isolation == here.notes.isolation
        assert intake == await here.intake()
        lowered = lower(intake.graphs, seeds(intake.graphs[0], device)[0], task_source=task.source, device=device)
        text = lowered.source
        words = []
        for asked, plan in ((text, lowered), (IN_TORCH, None), (WRONG, None)):
            ours, theirs = await evaluated(here, asked, plan), await evaluated(there, asked, plan)
            found = [rule(ours), rule(theirs)]
            assert found[0].verdict == found[1].verdict
            assert [gate.gate for gate in found[0].reasons] == [gate.gate for gate in found[1].reasons]
            words.append(found[1].verdict)
        assert words == ["accepted", "rejected", "incorrect"]
        assert sorted(path.suffix for path in (tmp_path / "elsewhere/builds").glob("*.so")) == [".so"]
        assert there.notes.seeds and there.notes.lock.alone_s > 0
        build = await here.build(text + "# built here, judged there\n")
        assert (await there.verify(text, build, "screen")).correct
    finally:
        await there.aclose()
        await here.aclose()
    assert there._process.returncode == 0
    assert not any(path.name.startswith("foundry-bench-") for path in (tmp_path / "elsewhere").iterdir())


async def test_what_goes_wrong_there_is_said_here(place: dict[str, str], tmp_path: Path) -> None:
    bench = await RemoteWorkbench.open(read_once(tmp_path, TASK.replace("0.5", "oops")), "cpu", seed=0, place=place)
    try:
        with pytest.raises(TaskError, match="oops"):
            await bench.baseline()
        asked = asyncio.ensure_future(bench.intake())
        await asyncio.sleep(0)
        os.kill(bench._process.pid, 9)
        with pytest.raises(FoundryError):
            await asked
        with pytest.raises(FoundryError, match="a worker of this run is gone"):
            await bench.build(IN_TORCH)
    finally:
        await bench.aclose()


async def test_a_process_that_cannot_start_says_why(place: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(FoundryError, match=r"g\+\+"):
        await RemoteWorkbench.open(read_once(tmp_path, TASK), "cpu", seed=0, place={**place, "PATH": ""})
