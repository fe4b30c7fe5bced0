"""A task whose parameters are large is judged in little memory: one model, one kind of parameters at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foundry.knowledge.errors import TooLarge
from foundry.tools.grade.questions import lean, on_use
from foundry.tools.grade.questions.lean import ROOMY, ROWS_BYTES, CaseRoom, LeanReference
from foundry.tools.grade.questions.on_use import BroughtOnUse
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.grade.questions.widening import wide
from foundry.tools.protocol.rules import AS_GIVEN, DISTRIBUTIONS, Parameters
from foundry.tools.task.file import read_task
from foundry.tools.task.gpu_plan import CONTEXT_BYTES, PIECE_BYTES, GpuPlan, Sizes, plan_host, plan_memory

GB = 10**9
TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, 1024)
        self.norm = nn.LayerNorm(1024)

    def forward(self, places):
        return self.norm(self.table(places)).float()


def get_inputs():
    return [torch.randint(0, ROWS, (64,))]
"""


def of_rows(rows: int) -> str:
    return TASK.replace("class Model", f"ROWS = {rows}\n\n\nclass Model", 1)


def parameters(size: float, widening: int, layers: int = 24) -> Sizes:
    """A model of so many bytes in as many linear layers, whose inputs and outputs are small."""
    small, own = 10**6, int(size)
    piece = own // layers + PIECE_BYTES
    return Sizes(small, small, widening * small, widening * small, parameters=own, work=small, piece=piece)


def test_a_model_of_13_gb_is_judged_in_three_times_its_size() -> None:
    """Its judging was said to need 340.6 GB: 26 copies of its parameters in bfloat16."""
    sizes = parameters(12.9e9, widening=4)
    before = GpuPlan(lanes=1, pairs=1, keeps_trials=False, slots=1)
    assert before.needed(sizes) == pytest.approx(337 * GB, rel=0.02)
    least = replace(before, is_lean=True)
    assert least.needed(sizes) < 3 * sizes.parameters + 4 * CONTEXT_BYTES
    tight = plan_memory(sizes, 45 * GB)
    assert tight.is_lean and tight.widens and 0 < tight.resident < sizes.parameters
    roomy = plan_memory(sizes, 110 * GB)
    assert roomy.is_lean and roomy.resident == 2 * sizes.parameters
    for plan, free in ((tight, 45 * GB), (roomy, 110 * GB), (plan_memory(sizes, 76 * GB), 76 * GB)):
        assert plan.needed(sizes) + plan.waiting * CONTEXT_BYTES <= 0.95 * free


def test_one_parameter_that_is_all_of_a_model_needs_no_more() -> None:
    table = parameters(12.9e9, widening=4, layers=1)
    plan = plan_memory(table, 46 * GB)
    assert plan.is_lean and plan.widens
    other = replace(table, piece=5 * table.parameters)  # no layer of PyTorch's uses it
    assert not plan_memory(other, 46 * GB).widens and plan_memory(other, 110 * GB).widens


def test_small_models_are_planned_as_before() -> None:
    assert not plan_memory(parameters(2e9, 2), 141 * GB).is_lean
    with pytest.raises(TooLarge, match=r"parameters 60\.0"):
        plan_memory(parameters(60e9, 4), 141 * GB)


def test_a_host_is_lean_where_its_limit_is_small() -> None:
    plan = GpuPlan(pairs=1)
    assert plan_host(plan, parameters(0.1e9, 2), 8 * GB) == plan
    assert plan_host(plan, parameters(0.6e9, 2), 8 * GB).is_lean


class Odd(torch.nn.Module):
    """Parameters that are used in many ways: tied, looked up, transposed, written to, in a list, by their types."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.hidden = torch.nn.Linear(16, 16)
        self.again = self.hidden
        self.norm = torch.nn.BatchNorm1d(16)
        self.recurrent = torch.nn.LSTM(16, 16)
        self.free = torch.nn.Parameter(torch.randn(16, 16).to(torch.bfloat16))
        self.counted = torch.nn.Parameter(torch.zeros(16), requires_grad=False)
        self.register_buffer("last", torch.zeros(16), persistent=False)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        rows = self.again(self.norm(self.hidden(self.table(places))))
        rows = self.recurrent(rows.unsqueeze(1))[0].squeeze(1).to(self.free.dtype) @ self.free.t()
        assert rows.device == self.free.device and self.free.shape == (16, 16) and len(self.free) == 16
        self.counted.add_(1.0)
        self.last: torch.Tensor = self.get_buffer("last") * 0.5 + rows.float().mean(0)
        joined = torch.cat([self.free, self.free], 0)
        made: torch.Tensor = rows.float() + self.counted + self.last + joined.float().sum()
        return made


def odd_pair(room: CaseRoom) -> tuple[Odd, LeanReference]:
    torch.manual_seed(0)
    model = Odd()
    return model, LeanReference(model, lambda: model, room, torch.device("cpu"))


def test_parameters_widened_on_use_give_the_answer_of_a_wide_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_use, "HOST_PIECE_BYTES", 256)  # two rows of a product
    places, (model, reference) = torch.arange(20), odd_pair(CaseRoom(is_lean=True))
    torch.manual_seed(0)
    exact: Odd = Odd()._apply(wide)  # type: ignore[no-untyped-call]
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with torch.no_grad():
        expected = exact(places)
        reference.load(model, "seeded", ["counted", "norm.running_mean", "norm.running_var"])
        with reference.widened() as opened, reference.running():
            found = opened(places)
        assert found.dtype == torch.float64 and torch.allclose(found, expected, rtol=1e-12)
        assert torch.equal(model.counted, exact.counted.float()), "what forward writes to is written to"
        reference.load(model, "seeded", ["counted", "norm.running_mean", "norm.running_var"])
    after = model.state_dict()
    assert all(after[key].dtype == tensor.dtype and after[key].equal(tensor) for key, tensor in before.items())
    assert model.last.dtype == torch.float32


def test_a_parameter_on_the_host_looks_as_if_it_were_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of tensors without memory stands for a GPU."""
    monkeypatch.setattr(on_use, "PIECE_BYTES", 1 << 20)
    own, meta = torch.nn.Parameter(torch.ones(4, 2, dtype=torch.bfloat16)), torch.device("meta")
    for is_wide, dtype in ((True, torch.float64), (False, torch.bfloat16)):
        with BroughtOnUse([own], meta, is_wide=is_wide):
            assert (own.device, own.dtype, tuple(own.shape), len(own), own.is_cuda) == (meta, dtype, (4, 2), 4, False)
            assert (own.t() @ own).device == torch.cat([own, own]).device == meta and own.t().dtype == dtype
    assert own.device.type == "cpu"


def test_a_model_that_rests_holds_nothing_and_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    model, reference = odd_pair(CaseRoom(is_lean=True))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    reference.free_memory()
    assert all(item.untyped_storage().nbytes() <= 8 for item in model.state_dict().values())
    assert model.hidden.weight.shape == (16, 16) and model.again is model.hidden
    assert all(piece.of(before[piece.key]).equal(piece.tensor) for piece in reference.held("seeded"))
    reference.load(model, "seeded", [])
    assert all(tensor.equal(before[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("rows_bytes", [ROWS_BYTES, 4096])
@pytest.mark.parametrize("name", ["as given", "randomised parameters", "few more parameters changed", "x3"])
def test_a_lean_case_knows_the_same_truth(
    name: str, rows_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lean, "ROWS_BYTES", rows_bytes)
    (tmp_path / "task.py").write_text(of_rows(300))
    task, found = read_task(tmp_path / "task.py"), list[tuple[Any, ...]]()
    for room in (ROOMY, CaseRoom(is_lean=True)):
        (case,) = cases_of(task, [3], "cpu", only_first=True, room=room)
        case.trial(AS_GIVEN, 5)
        kinds: list[Parameters] = ["randomised", "few changed", "few more"]
        for number, kind in enumerate(kinds):
            case.randomise(number, kind)
        trial = case.trial(next(item for item in DISTRIBUTIONS if item.name == name), 7)
        sent = case.state_parts(trial.distribution.parameters, 1 << 14, is_split=True)
        held = [tensor.clone().flatten() for part in sent for tensor in part.parcel.tensors()]
        found.append((trial.expected[0].truth, trial.ieee, torch.cat(held)))
        assert trial.note == ""
    (truth, errors, state), (other_truth, other_errors, other_state) = found
    if rows_bytes == ROWS_BYTES or "param" not in name:  # rows that are drawn by themselves are others
        assert torch.equal(truth, other_truth) and errors == other_errors and torch.equal(state, other_state)
    assert state.shape == other_state.shape and not torch.equal(other_state, torch.zeros_like(other_state))


def test_without_room_for_float64_the_own_run_is_the_truth_and_that_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(of_rows(300))
    (case,) = cases_of(
        read_task(tmp_path / "task.py"), [3], "cpu", only_first=True, room=CaseRoom(is_lean=True, widens=False)
    )
    assert "not asked for want of memory" in case.trial(AS_GIVEN, 5).note
