"""A task whose parameters are large is judged in little memory: one model, one kind of parameters at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tools.grade.test_workbench import BUILT, opened

from foundry.knowledge.candidate import Gate
from foundry.knowledge.errors import TooLarge
from foundry.tools.grade.questions.affordable import LEAN_KINDS, QuestionBudget
from foundry.tools.grade.questions.lean import ROOMY, CaseRoom, widened_in_place
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.process.zygote import Zygote
from foundry.tools.protocol.rules import AS_GIVEN, DISTRIBUTIONS, RANDOMISED
from foundry.tools.task.file import read_task
from foundry.tools.task.gpu_plan import CONTEXT_BYTES, GpuPlan, Sizes, plan_host, plan_memory

GB = 10**9
LIMIT_GB = "2.8"  # of a judge whose model holds 0.29 GB
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


def parameters(size: float, widening: int) -> Sizes:
    """A model of so many bytes of parameters, whose inputs and outputs are small."""
    small = 10**6
    return Sizes(small, small, widening * small, widening * small, int(size), small)


def test_a_model_of_13_gb_fits_a_gpu_of_141() -> None:
    """Its judging was said to need 340.6 GB: 26 copies of its parameters in bfloat16."""
    sizes = parameters(12.9e9, widening=4)
    before = GpuPlan(lanes=1, pairs=1, keeps_trials=False, slots=1)
    assert before.needed(sizes) == pytest.approx(337 * GB, rel=0.02)
    plan = plan_memory(sizes, 141 * GB)
    assert plan.is_lean and plan.widens
    assert plan.needed(sizes) < 7.5 * sizes.parameters + 4 * CONTEXT_BYTES
    tight = plan_memory(sizes, 80 * GB)
    assert tight.is_lean and not tight.widens
    assert tight.needed(sizes) < 5.0 * sizes.parameters + 4 * CONTEXT_BYTES


def test_small_models_are_planned_as_before() -> None:
    assert not plan_memory(parameters(2e9, 2), 141 * GB).is_lean
    with pytest.raises(TooLarge, match=r"parameters 60\.0"):
        plan_memory(parameters(60e9, 4), 141 * GB)


def test_a_host_is_lean_where_its_limit_is_small() -> None:
    plan = GpuPlan(pairs=1)
    assert plan_host(plan, parameters(0.1e9, 2), 8 * GB) == plan
    assert plan_host(plan, parameters(0.6e9, 2), 8 * GB).is_lean


def test_which_questions_are_left_out_is_said() -> None:
    budget, skipped = QuestionBudget(1.0, "fair", is_lean=True), dict[str, Gate]()
    asked = [item for item in DISTRIBUTIONS if not budget.leaves_out(item, skipped)]
    assert {item.parameters for item in asked} <= LEAN_KINDS
    assert len(asked) > 30 and "high biases" in skipped
    assert all(gate.evidence.startswith("not asked for want of memory") for gate in skipped.values())


def test_a_model_is_the_same_after_it_was_wide() -> None:
    torch.manual_seed(0)
    shared = torch.nn.Linear(8, 8)
    model = torch.nn.Sequential(shared, torch.nn.BatchNorm1d(8).to(torch.bfloat16), shared)
    counts = torch.arange(4)
    model.register_buffer("counts", counts)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with widened_in_place(model):
        assert {tensor.dtype for tensor in model.parameters()} == {torch.float64}
        assert model.get_buffer("counts").dtype == torch.int64
    after = model.state_dict()
    assert all(after[name].dtype == tensor.dtype and after[name].equal(tensor) for name, tensor in before.items())


@pytest.mark.parametrize("distribution", [AS_GIVEN, RANDOMISED])
def test_a_lean_case_knows_the_same_truth(tmp_path: Path, distribution: object) -> None:
    (tmp_path / "task.py").write_text(of_rows(300))
    task = read_task(tmp_path / "task.py")
    found = []
    for room in (ROOMY, CaseRoom(is_lean=True)):
        (case,) = cases_of(task, [3], "cpu", only_first=True, room=room)
        case.trial(AS_GIVEN, 5)
        case.randomise(9)
        trial = case.trial(distribution, 7)  # type: ignore[arg-type]
        found.append((trial.expected[0].truth, trial.ieee, case.state(trial.distribution.parameters).parcel.tensors()))
        assert trial.note == ""
    (one, own, ours), (other, errors, theirs) = found
    assert torch.equal(one, other) and own == errors
    assert all(map(torch.equal, ours, theirs))


def test_without_room_for_float64_the_own_run_is_the_truth_and_that_is_noted(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(of_rows(300))
    (case,) = cases_of(
        read_task(tmp_path / "task.py"), [3], "cpu", only_first=True, room=CaseRoom(is_lean=True, widens=False)
    )
    assert "not asked for want of memory" in case.trial(AS_GIVEN, 5).note


@pytest.mark.slow
async def test_a_model_of_290_mb_is_proven_in_less_than_three_gb(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its judge took 17 times its parameters, 4.9 GB, and was ended at its limit."""
    monkeypatch.setenv("FOUNDRY_TASK_GB", LIMIT_GB)
    bench = await opened(zygote, tmp_path, of_rows(70_000))
    try:
        text = bench._task.source.replace("class Model(", "class ModelNew(")
        verdict = await bench.verify(text, BUILT, "full")
        assert verdict.correct, verdict.evidence
        left_out = [gate.gate for gate in verdict.gates if "want of memory" in gate.evidence]
        assert "large parameters" in left_out and "few parameters changed" not in left_out
    finally:
        await bench.aclose()
