"""The tuner on a GPU: real kernels, and ones that read where nothing is or never end."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
import torch
from tests.knowledge.compiler.lowering import graph_of

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.file.assemble import build_key
from foundry.tools.machine.device import describe, version_line
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.zygote import Zygote
from foundry.tools.targets.base import build_cache, read_literals
from foundry.tools.targets.cuda.describe import nvcc_path
from foundry.tools.tune.alone import Subject, subjects
from foundry.tools.tune.session import Crew, Session
from foundry.tools.tune.space import KernelSpace, Setting, neighbours
from foundry.tools.tune.sweep import Job
from foundry.tools.tune.tuner import tune

DEVICE = describe("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not DEVICE.present, reason="there is no GPU"),
    pytest.mark.skipif(nvcc_path() is None, reason="there is no nvcc"),
]


@pytest.fixture
def crew(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "build"))
    graph = graph_of(lambda x: torch.softmax(x, -1), torch.zeros(1024, 1024))
    return Crew(graph, Recipe("cuda"), DEVICE, zygote, DeviceLock(DEVICE, tmp_path), 1)


@pytest.fixture
def subject(crew: Crew) -> Subject:
    (found,) = subjects(crew.graph, crew.recipe, crew.device)
    return found


def cubin_of(text: str) -> Path:
    literals = read_literals(text)
    assert literals is not None
    version = version_line(str(nvcc_path()), "--version")
    return build_cache() / f"{build_key(literals.source, literals.about['flags'], version, DEVICE.arch)}.cubin"


def plant(crew: Crew, text: str, line: str) -> None:
    """Puts a build with this line at the start of each kernel into the cache, under the name of the text's own."""
    planted = re.sub(r"(__global__ [^{;]*\{)", lambda found: f"{found[1]} {line}", text)
    assert planted != text
    built = crew.target().build(planted)
    assert built.ok, built.first_error
    for suffix in (".cubin", ".log"):
        shutil.copyfile(cubin_of(planted).with_suffix(suffix), cubin_of(text).with_suffix(suffix))


def test_a_lost_device_and_a_kernel_that_never_ends_cost_themselves(crew: Crew, subject: Subject) -> None:
    space = KernelSpace(subject)
    present, lost, hanging, fine = [space.present, *neighbours(space, space.present)][:4]
    plant(crew, subject.file(space.printed(lost)), "*(volatile int*)8 = 1;")
    plant(crew, subject.file(space.printed(hanging)), "for (volatile int i = 0; i < 1; i = 0) {}")

    def job(setting: Setting) -> Job:
        return Job(subject.name, setting)

    async def work() -> None:
        session = Session(crew, {subject.name: subject}, {subject.name: space})
        try:
            jobs = [job(setting) for setting in (present, lost, hanging, fine)]
            assert await session.build(jobs) == {}
            found = await session.run(jobs, 3, 60.0)
            assert "CUDA error" in str(found[job(lost)])
            assert str(found[job(hanging)]).startswith("timeout")
            assert session.restarts == 2
            for good in (present, fine):
                assert len(found[job(good)]) >= 1 and all(0.001 < float(ms) < 1 for ms in found[job(good)])
        finally:
            await session.aclose()

    asyncio.run(work())


def test_a_sweep_tries_configurations_by_the_dozen(crew: Crew) -> None:
    tuned = asyncio.run(tune(crew, 12.0))
    (kernel,) = tuned.kernels
    assert tuned.failed == 0 and tuned.restarts == 0, tuned.log
    assert kernel.ended != "time" or tuned.tried >= 40, tuned.log
    assert 0 < kernel.best_ms <= kernel.present_ms
