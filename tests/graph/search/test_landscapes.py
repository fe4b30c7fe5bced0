"""The benchmark of the search: recorded times, the real search on them, and what its statistics say."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def search() -> Iterator[Any]:
    """The benchmark's own module, by a name that no folder of tests has; it finds its neighbours as where it is run."""
    sys.path.insert(0, str(BENCHMARKS))
    spec = spec_from_file_location("search_benchmark", BENCHMARKS / "search.py")
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = made = module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def recorded(search: Any) -> Any:
    found = search.read_landscapes(BENCHMARKS / "results" / "landscapes-h200.jsonl")
    return next(item for item in found if item.task == "rms_norm")


def test_a_landscape_reads_as_it_was_written(recorded: Any, tmp_path: Path) -> None:
    landscapes = importlib.import_module("landscapes")
    landscapes.write_landscapes(tmp_path / "again.jsonl", [recorded])
    (again,) = landscapes.read_landscapes(tmp_path / "again.jsonl")
    assert again == recorded and again.sweeps


def test_searches_start_alike_and_spend_what_they_may_on_what_was_recorded(search: Any, recorded: Any) -> None:
    library = search.RecordedLibrary(recorded)
    library.start = library.draw_start(3)
    trails = [asyncio.run(one(library, 3, 5)) for one in (search.run_search, search.search_randomly)]
    assert [len(trail.ms) for trail in trails] == [5, 5]
    assert trails[0].ms[0] == trails[1].ms[0] == recorded.ms(library.made(library.start))
    assert all(len(trail.curve(5)) == 5 and max(trail.curve(5)) <= 1.0 for trail in trails)


def test_a_difference_counts_where_most_tasks_show_it(search: Any) -> None:
    slow, fast = (0.5,) * 6 + (1.0,), (0.5, 1.0)
    made = [(task, seed) for task in "abcdef" for seed in (1, 2)]
    results = [search.Result(search.COLD, task, seed, slow) for task, seed in made]
    results += [search.Result(search.WHOLE, task, seed, (*fast, *fast[1:] * 4)) for task, seed in made]
    found = search.compare(search.pairs_of(results, search.WHOLE, search.COLD, lambda item: True), 300)
    assert found.ratio[0] == pytest.approx(2 / 7) and found.p < 0.01 and (found.wins, found.losses) == (12, 0)
    same = search.compare(search.pairs_of(results, search.COLD, search.COLD, lambda item: True), 300)
    assert same.ratio == (1.0, 1.0, 1.0) and same.p == 1.0
