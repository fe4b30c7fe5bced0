"""A GPU's memory is shared out before it is taken, and a task that does not fit is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from foundry.knowledge.errors import TaskError
from foundry.tools.task import intake
from foundry.tools.task.gpu_plan import CONTEXT_BYTES, GpuPlan, Sizes, plan_memory
from foundry.tools.task.limits import gpu_limit_bytes

GB = 10**9
H200 = 150 * GB


def elementwise(size: float) -> Sizes:
    """One input and one output of so many bytes of float32."""
    own = int(size)
    return Sizes(own, own, 2 * own, 2 * own, 0, 0)


def test_a_small_task_gets_all_the_room() -> None:
    assert plan_memory(elementwise(16e6), H200) == GpuPlan()


@pytest.mark.parametrize("size", [0.5e9, 2.1e9, 4e9, 6.44e9, 8.6e9])  # up to twice 8.6 GB moved in one call
def test_what_an_h200_can_hold_is_planned_to_fit(size: float) -> None:
    plan = plan_memory(elementwise(size), H200)
    assert plan.needed(elementwise(size)) + plan.waiting * CONTEXT_BYTES < H200


@pytest.mark.parametrize(
    "sizes",
    [
        elementwise(8.6e9),
        Sizes(int(8.6e9), int(5.7e9), int(17.2e9), int(11.5e9), 0, int(8.6e9)),  # a convolution with padded inputs
        Sizes(int(17.2e9), int(0.14e9), int(34.4e9), int(0.28e9), 0, 0),  # a pool
    ],
)
def test_the_largest_tasks_of_the_first_level_fit_what_is_free_of_an_h200(sizes: Sizes) -> None:
    assert plan_memory(sizes, int(140e9)).needed(sizes) < 133e9


def test_changed_inputs_need_room_even_where_outputs_are_small() -> None:
    """A pool of 17 GB ran out of memory while its inputs were changed: the plan counted only their float64 copy."""
    pool = Sizes(10 * GB, 0, 20 * GB, 0, 0, 0)
    tightest = GpuPlan(lanes=1, pairs=1, keeps_trials=False, slots=1)
    assert tightest.needed(pool) >= (4 + 1) * pool.inputs  # given, changed, two temporaries; the candidate's


def test_less_room_costs_time_and_no_check() -> None:
    plans = [plan_memory(elementwise(size), H200) for size in (1e6, 3e9, 6.44e9, 8.6e9)]
    rooms = [(plan.lanes, plan.pairs, plan.keeps_trials, plan.slots, plan.waiting) for plan in plans]
    assert rooms == sorted(rooms, reverse=True) and len(set(rooms)) > 2
    assert not plans[-1].keeps_trials and plans[-1].slots == 1


def test_every_byte_of_a_task_counts() -> None:
    base = elementwise(4e9)
    for name in ("inputs", "outputs", "wide_outputs", "parameters", "work"):
        more = replace(base, **{name: getattr(base, name) + GB})
        assert GpuPlan().needed(more) > GpuPlan().needed(base), name


def test_the_largest_case_decides() -> None:
    one, other = Sizes(1, 20, 2, 40, 5, 0), Sizes(10, 2, 20, 4, 0, 7)
    assert Sizes.largest([one, other]) == Sizes(10, 20, 20, 40, 5, 7)


def test_a_task_that_does_not_fit_is_refused_with_the_bytes_it_needs() -> None:
    with pytest.raises(TaskError) as refused:
        plan_memory(elementwise(8.6e9), 80 * GB)
    tightest = GpuPlan(lanes=1, pairs=1, keeps_trials=False, slots=1).needed(elementwise(8.6e9))
    assert (
        f"needs {tightest / 1e9:.1f} GB of GPU memory" in refused.value.problem
        and "inputs 8.6" in refused.value.problem
    )
    assert "\n" not in refused.value.problem


@pytest.mark.parametrize(("part_gb", "share"), [(17.0, (17e9 - CONTEXT_BYTES) / 85e9), (100.0, 1.0), (0.5, 0.0)])
def test_a_look_at_a_task_takes_no_more_of_a_gpu_than_its_part(
    part_gb: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the inputs three times: beside a lane that proved something, the device was full."""
    asked: list[float] = []
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=int(85e9)))
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", asked.append)
    monkeypatch.setenv("FOUNDRY_GPU_GB", str(part_gb))
    intake._stay_within(torch.device("cuda"), gpu_limit_bytes())
    assert asked == [pytest.approx(share)]
    monkeypatch.delenv("FOUNDRY_GPU_GB")
    intake._stay_within(torch.device("cuda"), gpu_limit_bytes())
    assert len(asked) == 1
