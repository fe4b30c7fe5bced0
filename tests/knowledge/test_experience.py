"""The experience store against a real journal, a real Chroma index and real second processes."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, until

from foundry.knowledge.errors import UsageError
from foundry.knowledge.experience.embedding import DIMENSIONS, embed
from foundry.knowledge.experience.record import ExperienceRecord, KernelChoices, Query
from foundry.knowledge.experience.store import ExperienceStore, record_id, shape_class

CPU = "cpu:Test CPU:2"


def lesson(number: int, **changes: object) -> ExperienceRecord:
    base = ExperienceRecord(
        id=record_id("run", 0, number),
        run="run",
        step=f"i0g{number}",
        created=f"2026-01-01T00:00:{number % 60:02d}",
        task="softmax",
        graph_signature="sig-softmax",
        op_kinds=("softmax",),
        shape_class="2d:n=4^11:row=4^5",
        device=CPU,
        target="cpu",
        limiter="memory_bandwidth",
        evidence="12 GB/s of 20",
        move="row:set:unroll=4",
        outcome="correct",
        parent_speedup=1.0,
        child_speedup=1.5,
        child_ci95=(1.4, 1.6),
        text="unrolling four rows hides the latency of the exponential",
    )
    record = dataclasses.replace(base, **changes)  # type: ignore[arg-type]
    return record if record.together else dataclasses.replace(record, together={record.move: 1})


QUERY = Query("sig-softmax", ("softmax",), "2d:n=4^11:row=4^5", CPU, "cpu", "memory_bandwidth")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperienceStore]:
    opened = ExperienceStore.open(tmp_path / "store")
    yield opened
    opened.close()


def test_exact_graph_comes_before_similar_operators(store: ExperienceStore) -> None:
    store.add(
        [
            lesson(1),
            lesson(2, graph_signature="sig-softmax-gelu", op_kinds=("gelu", "softmax"), task="other"),
            lesson(3, shape_class="2d:n=4^6:row=4^3"),
            lesson(4, graph_signature="sig-conv", op_kinds=("conv2d",), text="im2col of a convolution"),
            lesson(5, graph_signature="sig-softmax", target="cuda", device="cuda:GPU:132"),
        ]
    )
    hits = store.recall(QUERY)
    assert [hit.record.id for hit in hits] == [record_id("run", 0, n) for n in (1, 3, 2)]
    assert hits[0].nearness == 1.0 and hits[0].why == "same graph and size"
    assert hits[1].nearness < hits[0].nearness and "other size" in hits[1].why
    assert hits[2].nearness <= 0.5


def test_the_winner_of_a_run_is_recalled_first(store: ExperienceStore) -> None:
    store.add([lesson(1, child_speedup=3.0), lesson(2, is_run_best=True, move="seed", child_speedup=2.0)])
    assert store.recall(QUERY)[0].record.is_run_best


def test_credit_is_reinforced_by_wins_and_decayed_by_failures(store: ExperienceStore) -> None:
    store.add(
        [
            lesson(1, move="good", child_speedup=2.0),
            lesson(2, move="good", child_speedup=2.0),
            lesson(3, move="bad", outcome="wrong_result", child_speedup=None),
            lesson(4, move="seed"),
        ]
    )
    good, bad = store.credits(QUERY)
    assert (good.move, good.steps, good.wins) == ("good", 2, 2) and good.low < 1.2 < good.effect < 2.0 < good.high
    assert (bad.move, bad.steps, bad.wins) == ("bad", 1, 0) and 0.8 < bad.effect < 1.0


def test_every_step_of_the_graph_is_read_however_few_are_shown(store: ExperienceStore) -> None:
    """A recorded run showed eight hits from its fifth step on, the best lifts first: losers and failures vanished."""
    wins = [lesson(number, move="often", child_speedup=1.3) for number in range(8)]
    losses = [lesson(10 + number, move="often", child_speedup=0.7) for number in range(20)]
    failures = [lesson(40 + number, move="often", outcome="crash", child_speedup=None) for number in range(12)]
    repairs = [lesson(60, move="often", parent_speedup=None), lesson(61, move="often", outcome="unproven")]
    store.add([*wins, *losses, *failures, *repairs])
    (credit,) = store.credits(QUERY)
    logs = 8 * math.log(1.3) + 20 * math.log(0.7) + 12 * math.log(0.8)
    assert (credit.steps, credit.wins) == (40, 8)
    assert credit.effect == pytest.approx(math.exp(logs / 40), rel=0.02) and credit.high < 0.95
    assert {hit.record.outcome for hit in store.recall(QUERY)} == {"correct"}  # the eight that say most: losses
    assert all((hit.record.lift or 1.0) < 1.0 for hit in store.recall(QUERY))
    store.forget([record.id for record in failures])
    assert store.credits(QUERY)[0].steps == 28


def test_an_older_store_opens_says_what_it_set_aside_and_learns_anew(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "journal.sqlite")) as old, old:
        old.execute(
            "CREATE TABLE records (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, created TEXT NOT"
            " NULL, graph_signature TEXT NOT NULL, device TEXT NOT NULL, target TEXT NOT NULL, move TEXT NOT NULL,"
            " is_run_best INTEGER NOT NULL, body TEXT NOT NULL)"
        )
        old.execute("CREATE INDEX by_graph ON records (graph_signature, target)")
        old.executemany(
            "INSERT INTO records VALUES (?, ?, '', 'sig-softmax', ?, 'cpu', 'row:set:unroll=4 + split:row', 0, '')",
            [(number, f"old{number}", CPU) for number in range(1, 4)],
        )
    (folder / "index").mkdir()
    (folder / "index" / "indexed.json").write_text('{"embedder": "hash-1-2gram-v1", "seq": 3}')
    with closing(ExperienceStore.open(folder)) as store:
        assert store.note.startswith("3 lessons that an older foundry left in") and "\n" not in store.note
        assert store.recall(QUERY) == [] and store.credits(QUERY) == [] and store.newest() == []
        store.add([lesson(1)])
        assert [record.id for record, _ in store.search("softmax")] == [lesson(1).id]  # the index began anew too
    with closing(ExperienceStore.open(folder)) as store:
        assert store.note == "" and len(store.newest()) == 1


def test_a_store_of_a_newer_version_is_refused_in_one_line(tmp_path: Path) -> None:
    with closing(ExperienceStore.open(tmp_path / "store")):
        pass
    with closing(sqlite3.connect(tmp_path / "store" / "journal.sqlite")) as newer:
        newer.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match="newer foundry"):
        ExperienceStore.open(tmp_path / "store")


def test_a_step_recorded_twice_counts_once(store: ExperienceStore) -> None:
    assert store.add([lesson(1)]) == 1
    assert store.add([lesson(1), lesson(2)]) == 1
    assert len(store.newest()) == 2


def test_export_import_forget_and_reindex(store: ExperienceStore, tmp_path: Path) -> None:
    store.add([lesson(n) for n in range(5)])
    assert store.export(tmp_path / "out.jsonl") == 5
    victim = record_id("run", 0, 2)
    assert store.forget([victim]) == 1
    assert victim not in {hit.record.id for hit in store.recall(QUERY, k=20)}
    with pytest.raises(UsageError, match="no record"):
        store.show(victim)
    assert store.reindex() == 4
    other = ExperienceStore.open(tmp_path / "other")
    assert other.import_(tmp_path / "out.jsonl") == 5
    assert len(other.recall(QUERY, k=20)) == 5
    other.close()


def test_importing_garbage_names_the_line_and_imports_nothing(store: ExperienceStore, tmp_path: Path) -> None:
    store.add([lesson(1)])
    store.export(tmp_path / "good.jsonl")
    bad = tmp_path / "bad.jsonl"
    bad.write_text((tmp_path / "good.jsonl").read_text().replace(lesson(1).id, "fresh") + '{"id": 3}\n')
    with pytest.raises(UsageError, match=r"bad\.jsonl:2"):
        store.import_(bad)
    assert len(store.newest()) == 1


def test_a_second_process_searches_without_touching_the_index(tmp_path: Path, store: ExperienceStore) -> None:
    store.add([lesson(1), lesson(2, graph_signature="sig-other", op_kinds=("gelu", "softmax"))])
    assert store.index_kind == "chroma"
    program = (
        "import sys\n"
        "from foundry.knowledge.experience.store import ExperienceStore\n"
        "from foundry.knowledge.experience.record import Query\n"
        f"store = ExperienceStore.open({str(tmp_path / 'store')!r})\n"
        f"hits = store.recall(Query('sig-softmax', ('softmax',), '2d:n=4^11:row=4^5', {CPU!r}, 'cpu'))\n"
        "print(store.index_kind, len(hits))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["scan", "2"], done.stderr


def test_a_damaged_index_is_rebuilt_from_the_journal(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = ExperienceStore.open(folder)
    store.add([lesson(n, graph_signature=f"sig-{n}") for n in range(3)])
    assert len(store.recall(QUERY)) == 3
    store.close()
    (damaged,) = folder.glob("index/chroma-*/chroma.sqlite3")
    damaged.write_bytes(b"x" * 4096)
    # A new process, as a user would have: Chroma caches its open systems by path.
    check = (
        "from foundry.knowledge.experience.store import ExperienceStore\n"
        "from foundry.knowledge.experience.record import Query\n"
        f"store = ExperienceStore.open({str(folder)!r})\n"
        f"print(len(store.recall(Query('sig-softmax', ('softmax',), '2d:n=4^11:row=4^5', {CPU!r}, 'cpu'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.strip() == "3", done.stderr


def test_a_damaged_journal_is_one_clear_line(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "journal.sqlite").write_bytes(b"this is no database" * 100)
    with pytest.raises(UsageError, match="damaged") as caught:
        ExperienceStore.open(folder)
    assert "\n" not in str(caught.value) and "--store" in caught.value.remedy


def test_threads_share_one_store(store: ExperienceStore) -> None:
    def work(start: int) -> None:
        for number in range(start, start + 20):
            store.add([lesson(number)])
            store.recall(QUERY)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.newest(1000)) == 60
    assert len(store.recall(QUERY, k=100)) == 60


def start_server(chroma: str, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A server that listens, and its port: a free one, for which it asks again where somebody else was quicker."""

    def is_listening() -> bool:
        with socket.socket() as plug:
            return plug.connect_ex(("127.0.0.1", port)) == 0

    for _ in range(3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [chroma, "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: server.poll() is not None or is_listening(), "a Chroma server")  # noqa: B023
        if server.poll() is None:
            return server, port
    raise AssertionError("the Chroma server does not start")


def test_a_chroma_server_shares_lessons_between_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chroma = shutil.which("chroma", path=str(Path(sys.executable).parent))
    assert chroma, "chromadb installs its server's command"
    server, port = start_server(chroma, tmp_path / "server")
    try:
        url = f"http://127.0.0.1:{port}"
        monkeypatch.setenv("FOUNDRY_HOME", str(tmp_path / "machine-a"))
        first = ExperienceStore.open(url)
        first.add([lesson(1)])
        assert len(first.recall(QUERY)) == 1
        monkeypatch.setenv("FOUNDRY_HOME", str(tmp_path / "machine-b"))
        second = ExperienceStore.open(url)
        assert [hit.record.id for hit in second.recall(QUERY)] == [lesson(1).id]
        assert [(credit.move, credit.here) for credit in second.credits(QUERY)] == [(lesson(1).move, 1)]
        first.close()
        second.close()
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE_S)


def test_an_unreachable_server_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="no Chroma server answers"):
        ExperienceStore.open("http://127.0.0.1:9")


def test_embeddings_are_unit_vectors_and_near_for_near_texts() -> None:
    def cosine(a: str, b: str) -> float:
        return sum(x * y for x, y in zip(embed(a), embed(b), strict=True))

    assert len(embed("")) == DIMENSIONS
    assert cosine("softmax row unroll", "softmax row unroll") == pytest.approx(1.0)
    assert cosine("softmax row unroll", "softmax row vector") > cosine("softmax row unroll", "conv2d im2col tile")


def test_shape_class_buckets_near_sizes_together() -> None:
    assert shape_class([(4096, 1024)]) == shape_class([(4000, 1000)])
    assert shape_class([(4096, 1024)]) != shape_class([(64, 64)])


def rows(run: str, speeds: Sequence[float], **changes: object) -> list[ExperienceRecord]:
    """Measurements of a kernel in one run, at these speeds, each with another tunable value."""
    return [
        lesson(
            number,
            id=f"{run}.{number}",
            run=run,
            source_digest=f"{run}.{number}",
            move="seed",
            child_speedup=speed,
            child_ci95=(speed, speed),
            kernels=(KernelChoices("#0", "row", "row:softmax", 1.0, {"unroll": number}),),
        )
        for number, speed in enumerate(speeds)
    ]


def test_a_run_tells_its_best_and_how_far_down_others_were_in_few_configurations(store: ExperienceStore) -> None:
    speeds = [1.0 + ((7 * number) % 41) / 10 for number in range(41)]
    (bad,) = rows("one", [0.0])
    bad = dataclasses.replace(bad, id="bad", step="bad", source_digest="bad", outcome="crash", child_speedup=None)
    store.add([*rows("one", speeds), bad])
    found = store.known(QUERY, {"row"})
    known = [math.exp(item.log_speedup) for item in found if not item.failed]
    assert len(found) <= 30 and not store.known(QUERY, {"gemm"})
    assert known[:6] == pytest.approx(sorted(speeds, reverse=True)[:6])
    assert min(known) < 1.6 and max(one - other for one, other in itertools.pairwise(known)) < 1.0


def test_a_run_is_told_a_step_once_and_none_of_its_own(store: ExperienceStore) -> None:
    """A tuner's step of seven moves came back as seven lines, to the run that had just made it."""
    made = [dataclasses.replace(lesson(number), step="i0g4", run="earlier") for number in range(5)]
    own = [dataclasses.replace(lesson(10 + number), run="mine", step=f"i0g{number}") for number in range(12)]
    store.add([*made, *own])
    hits = store.recall(dataclasses.replace(QUERY, run="mine"))
    assert [hit.record.run for hit in hits] == ["earlier"]
    assert len(store.recall(QUERY, k=20)) == 13


def test_several_runs_of_a_graph_share_its_part_and_the_nearest_graph_is_told_first(store: ExperienceStore) -> None:
    speeds = [1.0 + number / 10 for number in range(30)]
    for run in ("f1", "f2", "f3"):
        store.add(dataclasses.replace(one, graph_signature="other", op_kinds=("sum",)) for one in rows(run, speeds))
    store.add(dataclasses.replace(one, shape_class="1d") for one in rows("own", speeds[:5]))
    found = store.known(QUERY, {"row"})
    assert [item.run for item in found[:5]] == ["own"] * 5
    assert {(item.graph, bool(item.site)) for item in found} == {("", True), ("other", True)}
    assert {run: sum(item.run == run for item in found) for run in ("f1", "f2", "f3")} == {"f1": 10, "f2": 10, "f3": 10}
