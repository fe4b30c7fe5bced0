"""Which files are tasks, and how shards share them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foundry.graph.doors.bench import bench
from foundry.graph.doors.bench.bench import places_of
from foundry.graph.doors.bench.request import BenchRequest, levels_of, shard_of
from foundry.graph.doors.bench.sizes import input_elements
from foundry.graph.doors.bench.tasks import find_tasks, in_turn, mixed
from foundry.knowledge.device import Device
from foundry.knowledge.errors import UsageError
from foundry.tools.targets.cuda import describe as device_module
from foundry.tools.targets.cuda.describe import visible_gpus


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As KernelBench lays its files out; nothing but the names is read."""
    for level, count in ((1, 12), (2, 7)):
        folder = tmp_path / f"KernelBench/level{level}"
        folder.mkdir(parents=True)
        for number in range(1, count + 1):
            (folder / f"{number}_task.py").touch()
        (folder / "__init__.py").touch()
    return tmp_path


def names(checkout: Path, **asked: Any) -> list[str]:
    request = BenchRequest(str(checkout), "out", **{"levels": (1, 2), **asked})
    return [task.name for task in find_tasks(request)]


def test_tasks_stand_in_the_order_of_their_numbers(checkout: Path) -> None:
    assert names(checkout)[:3] == ["level1/1_task", "level1/2_task", "level1/3_task"]
    assert names(checkout)[11:13] == ["level1/12_task", "level2/1_task"]
    assert len(names(checkout)) == 19
    assert [name for name in names(checkout / "KernelBench/level2", levels=())][-1] == "7_task"


def test_every_beginning_of_a_bench_is_spread_over_its_tasks(checkout: Path) -> None:
    """Whoever ends it early has tasks of every level and every part of a level."""
    tasks = find_tasks(BenchRequest(str(checkout), "out", levels=(1, 2)))
    order = [tasks.index(task) for task in mixed(tasks)]
    assert sorted(order) == list(range(19))
    for count in (4, 7, 10):
        places = sorted(order[:count])
        assert max(later - earlier for earlier, later in zip([-1, *places], [*places, 19], strict=True)) <= 38 / count


def test_the_smallest_tasks_come_last_so_that_lanes_end_together(checkout: Path) -> None:
    tasks = find_tasks(BenchRequest(str(checkout), "out", levels=(1, 2)))
    assert in_turn(tasks) == mixed(tasks), "nothing is known of any"
    for number, task in enumerate(tasks[:18]):
        text = f"SIZE = {number + 1} * 8\ndef get_inputs():\n    return [torch.rand(SIZE, 4)]\n"
        Path(task.path).write_text(text)
    order = in_turn(tasks)
    assert order[-6:] == tasks[5::-1] and sorted(order, key=tasks.index) == tasks
    assert order[:-6] == [task for task in mixed(tasks) if task not in order[-6:]]


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("n, m = 4, 5\nshape = (n, m)\ndef get_inputs():\n    return [torch.rand(8, *shape), torch.ones(shape)]", 180),
        ("n = 1 << 10\ndef get_inputs():\n    x = torch.randint(0, 9, (n, n // 2))\n    return [x.float()]", 1 << 19),
        ("def get_inputs():\n    return [torch.randn(2, other())]", None),
        ("def get_inputs():\n    return [torch.rand(10 ** 9, 2)]", None),
        ("def get_inputs():\n    return [x]", None),
        ("def get_inputs(:", None),
    ],
)
def test_the_size_of_a_task_is_read_from_its_file(text: str, elements: int | None) -> None:
    assert input_elements(text) == elements


@pytest.mark.parametrize("parts", [1, 2, 5, 19])
@pytest.mark.parametrize("every", [1, 3])
def test_shards_partition_the_tasks(checkout: Path, parts: int, every: int) -> None:
    if every == 3 and parts == 19:
        with pytest.raises(UsageError, match="none of the 19 tasks"):
            names(checkout, every=every, shard=(19, 19))
        return
    shards = [names(checkout, every=every, shard=(part, parts)) for part in range(1, parts + 1)]
    assert sorted(name for shard in shards for name in shard) == sorted(names(checkout, every=every))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_a_pattern_is_part_of_a_name_or_matches_it_whole(checkout: Path) -> None:
    assert names(checkout, only="level2/7") == ["level2/7_task"]
    assert names(checkout, only="level1/1?_*") == ["level1/10_task", "level1/11_task", "level1/12_task"]
    assert names(checkout, every=5, only="level2") == ["level2/1_task", "level2/6_task"]


def test_what_cannot_be_asked_for_is_said(checkout: Path) -> None:
    (checkout / "empty").mkdir()
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: names(checkout / "empty", levels=()), "holds no task files"),
        (lambda: names(checkout, levels=(1, 9)), "no folder .*level9"),
        (lambda: names(checkout, only="zzz"), "none of the 19 tasks"),
        (lambda: names(checkout, shard=(3, 2)), "--shard 3/2"),
        (lambda: shard_of("2"), "--shard 2"),
        (lambda: levels_of("1,,2"), "--levels 1,,2"),
    ]
    for asked, problem in cases:
        with pytest.raises(UsageError, match=problem):
            asked()
    assert (shard_of("2/4"), levels_of("1, 3")) == ((2, 4), (1, 3))


def test_a_cpu_has_one_lane() -> None:
    request = BenchRequest("tasks", "out", target="cpu")
    assert places_of(request, "") == places_of(request, "1") == [{}]
    for words in ("all", "2", "0,1"):
        with pytest.raises(UsageError, match="no kernel would run on a GPU here"):
            places_of(request, words)


def test_lanes_share_each_gpu_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 140 * 10**9)
    monkeypatch.setattr(device_module, "visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(bench, "describe", lambda target: device)
    request = BenchRequest("tasks", "out", target="cuda")
    parts = [{"CUDA_VISIBLE_DEVICES": "0", "FOUNDRY_GPU_GB": size} for size in ("112.0", "14.0", "14.0")]
    assert places_of(request, "", 3) == parts  # one for large tasks
    found = places_of(request, "all", 2)
    assert [place["CUDA_VISIBLE_DEVICES"] for place in found] == ["0", "1", "0", "1"]
    assert places_of(request, "2") == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]


@pytest.mark.gpu
@pytest.mark.skipif(not visible_gpus(), reason="there is no NVIDIA GPU here")
def test_every_gpu_is_a_lane() -> None:
    request = BenchRequest("tasks", "out", target="cuda")
    places = places_of(request, "all")
    assert places and len({place["CUDA_VISIBLE_DEVICES"] for place in places}) == len(places)
    with pytest.raises(UsageError, match="are here"):
        places_of(request, str(len(places) + 1))
