"""The machine side of the tuner: a real compiler, a real warm process, and kernels that are wrong, hang and die."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.knowledge.compiler.lowering import graph_of
from tests.waiting import PATIENCE_S

from foundry.knowledge.candidate import AuthoredKernel, AuthoredLaunch, AuthoredTunable, Recipe
from foundry.knowledge.codec import encode
from foundry.knowledge.compiler.cuda.launches import Launch
from foundry.knowledge.compiler.cuda.launches import encode as encode_launches
from foundry.knowledge.compiler.file.assemble import build_key
from foundry.tools.grade.host.folders import prepare_folders
from foundry.tools.machine.device import describe
from foundry.tools.machine.holds import Holds
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.child import Limits
from foundry.tools.process.zygote import WorkerDied, Zygote
from foundry.tools.targets.base import built_file, read_literals
from foundry.tools.targets.cpu.build import CpuTarget, compiler_version, machine
from foundry.tools.targets.cuda.unfit import unfit
from foundry.tools.tune import session as tuning_session
from foundry.tools.tune.alone import Subject, subjects
from foundry.tools.tune.session import ENTRY, Cell, Crew, Session, is_time
from foundry.tools.tune.space import KernelSpace, Setting, neighbours
from foundry.tools.tune.sweep import Job
from foundry.tools.tune.tuner import TunedPlan, starts_from, tune


@pytest.fixture
def crew(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    """One kernel of 64 KB, and builds of this test only. A sample may take as long as a busy machine makes it."""
    monkeypatch.setattr(tuning_session, "HANG_S", PATIENCE_S)
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "build"))
    device = describe("cpu")
    graph = graph_of(lambda x: torch.relu(x) * 2.0 + 1.0, torch.zeros(128, 128))
    yield Crew(graph, Recipe("cpu"), device, zygote, DeviceLock(device, tmp_path), device.cores)


@pytest.fixture
def subject(crew: Crew) -> Subject:
    (found,) = subjects(crew.graph, crew.recipe, crew.device)
    return found


def plant(subject: Subject, space: KernelSpace, setting: Setting, old: str, new: str) -> None:
    """Puts another build into the cache under the name of a configuration's own."""
    text = subject.file(space.printed(setting))
    assert old in text
    built = CpuTarget().build(text.replace(old, new))
    assert built.ok, built.first_error
    literals = read_literals(text)
    assert literals is not None
    key = build_key(literals.source, literals.about["flags"], compiler_version("g++"), machine())
    built_file(built).rename(built_file(built).with_name(f"{key}.so"))


def test_bad_configurations_cost_themselves(crew: Crew, subject: Subject) -> None:
    space = KernelSpace(subject)
    present, wrong, hanging, fine, after = [space.present, *neighbours(space, space.present)][:5]
    entry = "int foundry_forward(void** buffers) {"
    plant(subject, space, wrong, "return 0;", "((float*)buffers[1])[5] += 0.5f; return 0;")
    plant(subject, space, hanging, entry, f"{entry} for (volatile int i = 0;; i = 1) {{}}")

    def job(setting: Setting) -> Job:
        return Job(subject.name, setting)

    async def work() -> None:
        session = Session(crew, {subject.name: subject}, {subject.name: space})
        try:
            jobs = [job(setting) for setting in (present, wrong, hanging, fine)]
            assert await session.build(jobs) == {}
            found = await session.run(jobs, 2, PATIENCE_S)
            assert found[job(wrong)] == "wrong: output 0: 1 of 16384 elements differ"
            assert str(found[job(hanging)]).startswith("timeout")
            for good in (present, fine):
                assert found[job(good)] and all(0 < float(ms) < 1e3 for ms in found[job(good)])
            assert session.restarts == 1

            assert session.worker_pid is not None
            os.kill(session.worker_pid, signal.SIGKILL)
            assert await session.build([job(after)]) == {}
            found = await session.run([job(after), job(fine)], 1, PATIENCE_S)
            assert "SIGKILL" in str(found[job(after)]), "the configuration that met the end is lost"
            assert len(found[job(fine)]) == 1, "and no other"
        finally:
            await session.aclose()

    asyncio.run(work())


def test_a_text_that_the_library_does_not_print_is_refused(crew: Crew, subject: Subject) -> None:
    text = subject.file(subject.print(subject.present))
    worker = crew.zygote.fork(ENTRY, Limits(), environment={"FOUNDRY_BUILD_CACHE": os.environ["FOUNDRY_BUILD_CACHE"]})
    try:
        opened = {"device": crew.device, "recipe": crew.recipe, "graph": crew.graph}
        worker.request({**{name: encode(value) for name, value in opened.items()}, "threads": 1})
        order = {"do": "load", "kernel": subject.name, "choices": dict(subject.present)}
        answer, _ = worker.request({**order, "text": text.replace("# Foundry kernel", "#  Foundry kernel")})
        assert answer["problem"] == "refused: the kernel compiler prints another text for these choices"
        assert worker.request({**order, "text": text})[0] == {}
    finally:
        worker.end()


# A copy that tries to read and to write outside of its sandbox in each call, and works REPEAT times.
HOSTILE = """#include <cstdio>
#include <cstdlib>
static void copy(const float* x, float* out) {
  if (FILE* planted = fopen("@FOLDER@/planted", "w")) fclose(planted);
  if (fopen("@FOLDER@/secret", "r")) abort();
  for (volatile int turn = 0; turn < REPEAT; ++turn)
#pragma omp parallel for num_threads(THREADS)
    for (long i = 0; i < x_n; ++i) out[i] = x[i];
}
"""


def authored_crew(crew: Crew, folder: Path) -> Crew:
    (folder / "secret").write_text("the seeds")
    kernel = AuthoredKernel(
        HOSTILE.replace("@FOLDER@", str(folder)),
        (AuthoredLaunch("copy", ("x", "out")),),
        (AuthoredTunable("REPEAT", (1, 60), 60), AuthoredTunable("THREADS", (1, 2), 1)),
    )

    def cell() -> Cell:
        place = Path(tempfile.mkdtemp(dir=folder))
        own = prepare_folders("", place)
        return Cell(place, own.environment, own.sandbox)

    graph = graph_of(Copy(), torch.zeros(128, 128))
    return replace(crew, graph=graph, recipe=Recipe("cpu", authored=kernel), cell=cell)


class Copy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def test_an_authors_kernel_is_tuned_in_a_sandbox(crew: Crew, tmp_path: Path) -> None:
    crew = authored_crew(crew, tmp_path)
    tuning = asyncio.run(tune(crew, PATIENCE_S))  # all four are tried before
    assert tuning.failed == 0 and tuning.tried >= 2, tuning.log
    assert tuning.recipe.choices["authored"]["REPEAT"] == 1
    assert not (tmp_path / "planted").exists()
    assert not list(tmp_path.glob("tmp*")), "the process left its folder"


def test_an_authors_kernel_never_runs_in_the_trusted_process(crew: Crew, tmp_path: Path) -> None:
    crew = authored_crew(crew, tmp_path)
    message = {"device": encode(crew.device), "recipe": encode(crew.recipe), "graph": encode(crew.graph), "threads": 1}
    worker = crew.zygote.fork(ENTRY, Limits(), environment={"FOUNDRY_BUILD_CACHE": os.environ["FOUNDRY_BUILD_CACHE"]})
    try:
        with pytest.raises(WorkerDied, match="an author's code runs in a sandbox only"):
            worker.request(message)
    finally:
        worker.end()
    tuning = asyncio.run(tune(replace(crew, cell=None), 1.0))
    assert tuning.tried == tuning.failed and tuning.recipe == crew.recipe


@pytest.mark.parametrize("ms", [float("nan"), -1.0, 1e9, "1.0", None, [1.0]])
def test_a_time_that_cannot_have_passed_is_none(ms: object) -> None:
    assert not is_time(ms, 5.0) and is_time(0.3, 5.0)


def test_a_warm_start_is_what_helped_such_kernels_before(subject: Subject) -> None:
    space = KernelSpace(subject)
    template, present = subject.print(subject.present).template, dict(space.present)
    better, worse = (
        next(v for v in space.values(space.present)[name] if v != present[name]) for name in ("unroll", "chunk")
    )
    hints = {f"{template}:set:unroll={better}": 1.3, f"{template}:set:chunk={worse}": 0.8, "gemm:set:unroll=1": 9.0}
    (start,) = starts_from(space, template, hints)
    assert dict(start) == present | {"unroll": better}


def test_what_no_gpu_could_start_is_not_compiled(subject: Subject) -> None:
    device = replace(describe("cuda"), arch="sm_90")
    printed = subject.print(subject.present)

    def launched(threads: int, shared_bytes: int) -> str:
        launch = Launch("foundry_k", (1, 1, 1), (threads, 1, 1), (), shared_bytes)
        return unfit(replace(printed, call=encode_launches([launch])), device)

    assert launched(1024, 48 << 10) == ""
    assert launched(2048, 0) == "2048 threads a block"
    assert launched(256, 230 << 10) == f"{230 << 10} bytes of shared memory a block"


def test_a_plan_is_tuned_and_while_others_have_the_device_its_clock_stands_still(crew: Crew, subject: Subject) -> None:
    CpuTarget().build(subject.file(subject.print(subject.present)))  # a busy machine needs seconds for one
    lines: list[str] = []
    others: list[threading.Thread] = []

    def take_the_device(session: Session) -> None:
        held = threading.Event()

        def hold() -> None:
            with Holds(crew.lock).alone():
                held.set()
                while session.waited_s < 0.5:
                    time.sleep(0.002)

        others.append(threading.Thread(target=hold))
        others[-1].start()
        assert held.wait(PATIENCE_S)

    async def work(seconds: float) -> TunedPlan:
        hints = {f"{subject.print(subject.present).template}:set:threads=1": 1.5}
        return await tune(crew, seconds, hints=hints, say=lines.append, watch=take_the_device)

    for seconds in (2.0, 8.0, 32.0):  # in the first of them a busy machine may come to nothing
        start = time.monotonic()
        tuning = asyncio.run(work(seconds))
        assert tuning.seconds <= time.monotonic() - start - 0.5
        others.pop().join()
        if tuning.tried:
            break
    (kernel,) = tuning.kernels
    assert tuning.tried == kernel.tried >= 1 and tuning.failed == 0
    assert kernel.best_ms <= kernel.present_ms
    changed = kernel.best_ms < kernel.present_ms
    assert tuning.recipe.choices == ({subject.name: kernel.choices} if changed else {})
    assert lines[-1].startswith(f'best: {{"{subject.name}": {{')
    assert subject.print(kernel.choices).choices == kernel.choices


def test_who_waits_for_the_device_or_a_compiler_ends_in_time_and_silently(
    crew: Crew,
    subject: Subject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def tuned() -> TunedPlan:
        start = time.monotonic()
        found = asyncio.run(tune(crew, 0.6))
        assert time.monotonic() - start < PATIENCE_S and found.recipe == crew.recipe
        return found

    CpuTarget().build(subject.file(subject.print(subject.present)))
    with DeviceLock(crew.device, tmp_path).held(fcntl.LOCK_EX, lambda: False):  # another run's
        assert "of waiting for others: its processes or the device took too long" in "\n".join(tuned().log)
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\nsleep 1000\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "empty"))
    assert tuned().failed == 0, "what was not reached has not failed"
    gc.collect()
    assert not caplog.text, "what was cancelled is nothing that a user should read of"
