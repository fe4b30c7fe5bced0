"""Several workbenches as one: an evaluation stays where it began, the free lane takes the next, home proves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Contest,
    ForeignName,
    Profile,
    RivalName,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device
from foundry.knowledge.errors import UsageError
from foundry.knowledge.task import Policy
from foundry.tools.grade.host.workbench import BenchNotes, Workbench
from foundry.tools.machine.lock import LockUse
from foundry.tools.remote.lanes import GpuLanes
from foundry.tools.targets.cuda import describe as machine

DEVICE = Device("cuda", "Test GPU", "sm_90", 132, 50 << 20, 16, 1 << 36)


class Lane:
    """Writes down what it is asked; texts that say "wrong" are."""

    def __init__(self, name: str) -> None:
        self.device, self.name = DEVICE, name
        self.asked: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def notes(self) -> BenchNotes:
        return BenchNotes((), {self.name: 1}, LockUse(1.0, 0.5, 2.0, 3.0))

    async def baseline(self) -> Baseline:
        return Baseline(1.0, 0.0, [(1,)])

    async def expect_contest(self, rivals: Sequence[RivalName]) -> None:
        self.asked.append(("expect contest", ",".join(rivals)))

    async def contest(
        self, text: str, build: Build | None, rivals: Sequence[RivalName], foreign: ForeignName | None = None
    ) -> Contest:
        self.asked.append(("contest", text))
        return Contest()

    async def build(self, text: str) -> Build:
        self.asked.append(("build", text))
        await asyncio.sleep(0)
        return Build(True, 0.0)

    async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
        self.asked.append((f"verify {stage}", text))
        await self.gate.wait()
        return Verdict("wrong_result" if "wrong" in text else "correct", stage)

    async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit:
        return Audit(True, policy)

    async def time(
        self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None, beside: str = ""
    ) -> Timing:
        self.asked.append((f"time {stage}", text))
        return Timing(stage, 1.0, 2.0, 2.0, (2.0, 2.0), 4, 0.0, 1.0)

    async def profile(self, text: str, build: Build, audit: Audit, timing: Timing, lowered: Lowered | None) -> Profile:
        return Profile("roofline", 0.0, 0.0, 0.0, 0.0, 1)


def lanes_of(*made: Lane) -> GpuLanes:
    return GpuLanes([cast(Workbench, lane) for lane in made])


async def evaluate(lanes: GpuLanes, text: str, stage: Stage = "screen") -> None:
    build = await lanes.build(text)
    verdict = await lanes.verify(text, build, stage)
    if verdict.correct:
        audit = await lanes.audit(text, build, verdict, "fair")
        await lanes.profile(text, build, audit, await lanes.time(text, build, stage), None)


def texts(lane: Lane) -> Sequence[str]:
    return sorted({text for _, text in lane.asked})


async def test_evaluations_spread_and_each_stays_on_one_gpu() -> None:
    one, other = Lane("home"), Lane("second")
    lanes = lanes_of(one, other)
    await asyncio.gather(*(evaluate(lanes, text) for text in ("a", "b", "c", "d")))
    assert [len(texts(lane)) for lane in (one, other)] == [2, 2]
    for lane in (one, other):
        assert sorted(lane.asked) == sorted(
            (what, text) for text in texts(lane) for what in ("build", "verify screen", "time screen")
        )
    assert lanes.notes.lock == LockUse(2.0, 1.0, 4.0, 6.0) and lanes.notes.seeds == {"home": 1}


async def test_the_free_lane_takes_the_next() -> None:
    one, other = Lane("home"), Lane("second")
    lanes = lanes_of(one, other)
    one.gate.clear()
    held = asyncio.ensure_future(evaluate(lanes, "long"))
    await asyncio.sleep(0)
    for text in ("b", "wrong", "d"):
        await evaluate(lanes, text)
    assert texts(other) == ["b", "d", "wrong"] and texts(one) == ["long"]
    one.gate.set()
    await held
    await evaluate(lanes, "after")
    assert "after" in texts(one)


async def test_proofs_and_torch_compile_are_made_on_one_gpu() -> None:
    one, other = Lane("home"), Lane("second")
    lanes = lanes_of(one, other)
    await asyncio.gather(*(evaluate(lanes, text) for text in ("a", "b")))
    await evaluate(lanes, "b", "final")
    await lanes.expect_contest(("compile",))
    await lanes.contest("b", None, ("compile",))
    assert ("expect contest", "compile") in one.asked
    assert ("verify final", "b") in one.asked and ("time final", "b") in one.asked and ("contest", "b") in one.asked
    assert ("time screen", "b") in other.asked


@pytest.mark.parametrize(
    ("asked", "seen", "chosen"),
    [
        ("all", ["0", "1"], ["0", "1"]),
        ("1", ["0", "1"], ["0"]),
        ("0,1", ["4", "7"], ["4", "7"]),
        ("1,0", ["GPU-a", "GPU-b"], ["GPU-b", "GPU-a"]),
        ("3", ["0", "1"], None),
        ("0,2", ["0", "1"], None),
        ("0,0", ["0", "1"], None),
        ("some", ["0"], None),
        ("all", [], None),
    ],
)
def test_gpus_are_chosen_by_number(
    asked: str, seen: list[str], chosen: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: seen)
    if chosen is None:
        with pytest.raises(UsageError, match=f"--gpus {asked}"):
            machine.chosen_gpus(asked)
    else:
        assert machine.chosen_gpus(asked) == chosen
