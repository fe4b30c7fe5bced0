"""Processes that wait for a model: each is used once, by the first request, and no more wait than allowed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from foundry.knowledge.targets import CUDA
from foundry.tools.grade.host.folders import prepare_folders
from foundry.tools.grade.host.runner_pool import CANDIDATE, REFERENCE, Runners
from foundry.tools.process.child import Limits
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.zygote import Worker, Zygote

READY = """
def serve(channel):
    while True:
        channel.receive_text()
        channel.send_text(b"{}")
"""
PLAIN, OTHER = "class ModelNew: pass", "class ModelNew: x = 1"
COMPILING = "from torch.utils.cpp_extension import load_inline\nclass ModelNew: pass"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    folder = tmp_path_factory.mktemp("ready")
    (folder / "ready_entry.py").write_text(READY)
    zygote = Zygote.start(threads=1, preload=["ready_entry"], later=[], environment={"PYTHONPATH": str(folder)})
    yield zygote
    zygote.close()


@pytest.fixture
def runners(warm: Zygote, tmp_path: Path) -> Iterator[Runners]:
    def fork(
        entry: str,
        limits: Limits,
        directory: Path,
        sandbox: Sandbox,
        environment: dict[str, str],
        folder_locks: Sequence[int],
    ) -> Worker:
        return warm.fork("ready_entry:serve", limits, directory=directory, folder_locks=folder_locks)

    made = Runners(
        fork, tmp_path, memory_bytes=1 << 30, threads=1, tf32=False, target=CUDA, await_dying=warm.await_dying
    )
    yield made
    made.pool.end_all()
    made.close()


def waiting(runners: Runners) -> int:
    return sum(map(len, runners.pool.ready().values()))


def test_what_is_ready_serves_any_candidate_once(
    runners: Runners, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "builds"))
    runners.pool.want(PLAIN, {REFERENCE: 1, CANDIDATE: 2}, 12)
    ready = {worker.pid for workers in runners.pool.ready().values() for worker in workers}
    assert len(ready) == 3
    runners.pool.forget(PLAIN)  # after all it is not timed
    runners.pool.want(OTHER, {REFERENCE: 1, CANDIDATE: 2}, 12)
    assert waiting(runners) == 3
    taken = [runners.take(), runners.take(OTHER), runners.take(PLAIN), runners.take(PLAIN)]
    assert {worker.pid for worker in taken[:3]} == ready and taken[3].pid not in ready
    assert not waiting(runners)
    for worker in taken:
        runners.discard(worker)


def test_a_file_that_compiles_itself_has_processes_of_its_own(
    runners: Runners, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "builds"))
    runners.pool.want(COMPILING, {REFERENCE: 1, COMPILING: 1}, 12)
    plain = runners.take(PLAIN)
    assert waiting(runners) == 2  # neither serves another text
    runners.pool.forget(COMPILING)
    assert waiting(runners) == 1
    runners.discard(plain)


def test_no_more_wait_than_may_and_the_dead_are_passed_over(runners: Runners) -> None:
    runners.pool.want(PLAIN, {REFERENCE: 3, CANDIDATE: 3}, 4)
    assert waiting(runners) == 4
    for workers in runners.pool.ready().values():
        for worker in workers:
            worker.end()
    fresh = runners.take()
    assert fresh.alive and REFERENCE not in runners.pool.ready()
    runners.discard(fresh)


def test_who_needs_one_waits_for_the_first_that_comes_and_timings_come_in_between(runners: Runners) -> None:
    """Checks and audits come before timed pairs: of six and ten processes the first four are candidates."""
    told: list[str] = []
    taken: list[Worker] = []
    taking = threading.Thread(target=lambda: taken.append(runners.take(OTHER)))

    def let_others() -> None:
        taking.join(30.0)
        waiting_now = {kind: len(workers) for kind, workers in runners.pool.ready().items()}
        told.append(f"{len(taken)} taken, {waiting_now}")

    forked = next(runners._numbers)
    wanted = {REFERENCE: 2, CANDIDATE: 6}
    held: list[str] = []

    @contextlib.contextmanager
    def starting() -> Iterator[Callable[[], object]]:
        held.append("held")
        yield let_others

    runners.pool.want(PLAIN, wanted, 12, starting=starting, begins=taking.start)
    assert told == ["1 taken, {'candidate': 3}"]
    assert next(runners._numbers) == forked + 1 + 8, "nobody made one besides"
    assert {kind: len(workers) for kind, workers in runners.pool.ready().items()} == {CANDIDATE: 5, REFERENCE: 2}
    runners.pool.want(PLAIN, {CANDIDATE: 5}, 12, starting=starting)
    assert held == ["held"], "who misses nothing waits for nobody"
    runners.discard(taken[0])


def test_a_timing_that_goes_on_beyond_what_was_made_ready_gets_more_pairs_at_once(runners: Runners) -> None:
    runners.pool.want(PLAIN, {REFERENCE: 1, CANDIDATE: 1}, 3)
    runners.pool.restock(PLAIN, (REFERENCE, CANDIDATE))
    assert waiting(runners) == 2  # a pair still waits
    first = runners.take(), runners.take(PLAIN)
    runners.pool.restock(PLAIN, (REFERENCE, CANDIDATE))
    assert waiting(runners) == 3  # two pairs, but for the one process that may not wait
    second = runners.take(), runners.take(PLAIN)
    assert waiting(runners) == 1
    runners.pool.want(PLAIN, {REFERENCE: 2, CANDIDATE: 0}, 12)
    runners.pool.restock(PLAIN, (REFERENCE, CANDIDATE))
    assert {kind: len(workers) for kind, workers in runners.pool.ready().items()} == {REFERENCE: 2, CANDIDATE: 2}
    for worker in (*first, *second):
        runners.discard(worker)


def test_a_build_cache_that_is_not_there_yet_can_be_read_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rules of files are made before the first build; on a new machine a candidate could not open its kernels."""
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "home/builds"))
    prepare_folders(PLAIN, tmp_path)
    assert (tmp_path / "home/builds").is_dir()


def test_who_is_under_way_does_not_lose_its_processes_to_another(runners: Runners) -> None:
    runners.pool.want(PLAIN, {REFERENCE: 1, CANDIDATE: 1}, 12)
    runners.pool.want(OTHER, {REFERENCE: 1, CANDIDATE: 1}, 12)
    assert waiting(runners) == 4


def test_who_rests_waits_for_those_that_were_buried(runners: Runners) -> None:
    workers = [runners.take() for _ in range(3)]
    folders = [worker.directory for worker in workers]
    for worker in workers:
        assert runners.release(worker, is_well=True) == ""
    runners.await_reaped()
    assert not any(Path(f"/proc/{worker.pid}").exists() or worker.alive for worker in workers)
    assert not any(folder is not None and folder.exists() for folder in folders)


def test_a_stock_is_made_a_few_at_a_time_and_candidates_under_way_take_from_it(runners: Runners) -> None:
    wanted = {REFERENCE: 2, CANDIDATE: 3}
    assert runners.pool.stock(PLAIN, wanted, 12, at_once=1) and list(runners.pool.ready()) == [CANDIDATE], (
        "most of these are wanted"
    )
    assert runners.pool.stock(PLAIN, wanted, 12, at_once=3) and waiting(runners) == 4
    assert runners.pool.stock(PLAIN, wanted, 12, at_once=3) and waiting(runners) == 5
    assert not runners.pool.stock(PLAIN, wanted, 12, at_once=3)
    runners.pool.want(OTHER, {REFERENCE: 2, CANDIDATE: 2}, 12)
    assert waiting(runners) == 5, "a candidate takes what is there"
    assert not runners.pool.stock(PLAIN, wanted, 12, at_once=3), "and nothing is made besides, as long as it has not"
    runners.discard(runners.take(PLAIN))
    assert runners.pool.stock(PLAIN, wanted, 12, at_once=3) and waiting(runners) == 5
    assert runners.pool.stock(PLAIN, {REFERENCE: 9}, 8, at_once=9) and waiting(runners) == 8, (
        "and no more wait than may"
    )
