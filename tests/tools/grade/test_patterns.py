"""Inputs under each pattern, and tasks on which a right kernel cannot be told from a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from foundry.knowledge.errors import TaskError
from foundry.tools.grade.judge.limits import limit_of
from foundry.tools.grade.judge.telling import find_telling
from foundry.tools.grade.questions import other_parameters
from foundry.tools.grade.questions.other_parameters import (
    WholeTensors,
    can_be_rearranged,
    draw_parameters,
    draw_tables,
    whole_tensors,
)
from foundry.tools.grade.questions.patterns import (
    PLAIN,
    Structure,
    break_structure,
    nudge,
    shuffle_rows,
    structure_of,
    transform,
    transform_each,
)
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.protocol.comparison import measure
from foundry.tools.protocol.rules import (
    AS_GIVEN,
    DISTRIBUTIONS,
    Distribution,
    OutputError,
    Parameters,
    Seeds,
    accepts,
    stress_limit,
)
from foundry.tools.task.file import read_task

BY_NAME = {item.name: item for item in DISTRIBUTIONS}
GIVEN = torch.randn(40, 1000, generator=torch.Generator().manual_seed(2))


def drawn(name: str, value: torch.Tensor = GIVEN, *, seed: int = 1, limited: bool = False) -> torch.Tensor:
    made = transform(value, BY_NAME[name], torch.Generator().manual_seed(seed), limited=limited)
    assert isinstance(made, torch.Tensor) and made.shape == value.shape and made.dtype == value.dtype
    return made


def test_inputs_of_two_levels_have_their_cuts_at_other_places_and_their_levels_in_common() -> None:
    """As two signals have that show the same event at other times: what looks near their diagonal alone is wrong."""
    given = [torch.randn(6, 50, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    stream = torch.Generator().manual_seed(3)
    made = transform_each(given, BY_NAME["steps"], [PLAIN, PLAIN], stream, limited=False)
    cuts = []
    for was, now in zip(given, made, strict=True):
        levels = (now - 0.25 * was) / 0.75
        first, last = given[0][:, :1], given[0][:, -1:]
        is_first = torch.isclose(levels[:, 1:-1], first, atol=1e-5).all(-1)
        assert torch.equal(is_first, ~torch.isclose(levels[:, 1:-1], last, atol=1e-5).all(-1))
        cuts.append(is_first.sum(1).tolist())
    assert len({*cuts[0], *cuts[1]}) > 6
    line = drawn("steps", torch.arange(100.0))
    assert float(line.diff().max()) > 70  # one step of a vector
    assert torch.equal(drawn("steps", torch.ones(())), torch.ones(()))


@pytest.mark.parametrize(("kind", "offset"), [("raised", 3.0), ("lowered", -3.0), ("high", 16.0), ("low", -16.0)])
def test_biases_move_by_as_much_as_their_kind_says(kind: Parameters, offset: float) -> None:
    state = {"weight": torch.randn(8, 8), "bias": torch.zeros(8), "scale": torch.ones(1, 8, 1)}
    usual = whole_tensors(draw_parameters("randomised", WholeTensors(state), set(state), set(state), 5))
    moved = whole_tensors(draw_parameters(kind, WholeTensors(state), set(state), set(state), 5))
    assert torch.equal(moved["weight"], usual["weight"])
    for key in ("bias", "scale"):
        assert torch.equal(moved[key], usual[key] + offset)


def test_each_pattern_is_what_it_says() -> None:
    constant = drawn("constant")
    assert bool((constant == 1.0).all())
    sparse = drawn("sparse")
    share = float((sparse != 0).double().mean())
    assert 0.002 < share < 0.005 and sparse[0, 0] != 0 and sparse[-1, -1] != 0
    assert float(sparse[sparse != 0].abs().min()) > 7.9 and float(sparse.abs().max()) < 33
    rows = drawn("one-hot rows")
    assert torch.equal(rows.sum(1), torch.ones(40)) and int((rows != 0).sum()) == 40
    assert torch.equal(drawn("positive"), GIVEN.abs()) and torch.equal(drawn("negative"), -GIVEN.abs())
    ordered = drawn("ordered")
    assert torch.equal(ordered, GIVEN.sort(dim=-1).values)
    strided = drawn("largest at a stride")
    assert torch.equal(strided.sort(dim=-1).values, ordered) and not torch.equal(strided, GIVEN)
    for number, stride in enumerate((16, 8, 4, 2)):  # in turns; 32 of a row of 1000 lie at the longest
        for row in strided[number::4]:
            assert len({int(place) % stride for place in row.topk(1000 // stride).indices}) == 1
    assert any(int(row.topk(60).indices.min()) % 16 == 0 for row in strided[::4])
    near = drawn("close together")
    assert float((near - 1).abs().max()) < 0.01 and len(set(near.flatten().tolist())) > 1000
    special = drawn("non-finite")
    assert bool(torch.isposinf(special).any() & torch.isneginf(special).any() & torch.isnan(special).any())
    places = torch.isneginf(special).nonzero()
    assert 2 <= len(places) <= 5 * 8 + 3 and int((~special.isfinite()).sum()) <= len(places) + 4  # a block of 5 x 8
    assert torch.equal(drawn("elements rearranged"), GIVEN.flip(0, 1))
    huge = drawn("few huge elements")
    assert 3 <= int((huge.abs() > 100).sum()) <= 4 and int((huge != GIVEN).sum()) <= 4
    faint = drawn("half negligible")
    assert 0.45 < float((faint.abs() < 1e-12).double().mean()) < 0.55
    parts = drawn("sixteenths")
    assert torch.equal(parts * 16, (parts * 16).round()) and float((parts - GIVEN).abs().max()) <= 1 / 32


@pytest.mark.parametrize("piece", [other_parameters.PIECE, 50])
def test_rearranged_parameters_keep_what_sums_and_checksums_show(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_parameters, "PIECE", piece)
    weight, ones, zeros = torch.randn(24, 7), torch.ones(33), torch.zeros(8)
    state = {"weight": weight, "gain": ones, "shift": zeros}
    made = whole_tensors(draw_parameters("rearranged", WholeTensors(state), set(state), set(state), 5))
    assert not torch.equal(made["weight"], weight)
    assert torch.equal(made["weight"].flatten().sort().values, weight.flatten().sort().values)
    for name in ("gain", "shift"):
        assert len(set(made[name].tolist())) > 1 and float(made[name].sum()) == float(state[name].sum())


def test_few_biases_are_high_and_few_rows_agree() -> None:
    state = {"weight": torch.randn(64, 32), "bias": torch.randn(64)}
    made = whole_tensors(draw_parameters("few high", WholeTensors(state), set(state), set(state), 5))
    assert int((made["bias"] > 8).sum()) == 4 and float(made["weight"].abs().max()) < 15
    rows = whole_tensors(draw_parameters("few close", WholeTensors(state), {"weight"}, {"weight"}, 5))["weight"]
    assert int((torch.cdist(rows, rows).add_(torch.eye(64)) < 0.3).any(1).sum()) == 8


def test_tables_are_rearranged_where_no_place_has_a_meaning_of_its_own() -> None:
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    while len(signs) < 32:
        signs = torch.kron(signs, torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    assert can_be_rearranged(signs) and can_be_rearranged(torch.randn(9))
    for other in (torch.hann_window(16), torch.arange(1.0, 9.0), torch.full((4, 4), 2.0), torch.eye(8) * 3):
        assert not can_be_rearranged(other)
    made = whole_tensors(draw_tables("rearranged buffers", WholeTensors({"basis": signs}), {"basis"}, 5))["basis"]
    assert not torch.equal(made, signs) and torch.equal(made, made.T) and float(made.sum()) == float(signs.sum())


def test_few_changed_elements_are_elsewhere_each_time_and_keep_to_a_declared_range() -> None:
    places = {int(torch.nonzero((drawn("few elements changed", seed=seed) != GIVEN).flatten())[0]) for seed in range(8)}
    assert len(places) > 6
    for seed in range(8):
        changed = drawn("few elements changed", seed=seed, limited=True)
        assert 1 <= int((changed != GIVEN).sum()) <= 3
        assert GIVEN.min() <= changed.min() and changed.max() <= GIVEN.max()


@pytest.mark.parametrize("name", ["constant", "sparse", "one-hot rows", "non-finite", "few elements changed"])
def test_indices_masks_and_layouts_stay(name: str) -> None:
    for value in (torch.randint(0, 9, (30, 4)), torch.rand(30, 4) < 0.5):
        assert torch.equal(drawn(name, value), value)
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1) > 0, -torch.inf)
    assert torch.equal(drawn(name, mask), mask)
    assert drawn(name, GIVEN.t()).stride() == GIVEN.t().stride()
    assert drawn(name, GIVEN.half()).dtype is torch.float16


def draws(make: Callable[[torch.Generator], torch.Tensor]) -> Structure:
    return structure_of(*(make(torch.Generator().manual_seed(seed)) for seed in (5, 6)))


def test_what_every_draw_has_in_common_stays() -> None:
    triangle = draws(lambda generator: torch.rand(300, 300, generator=generator).tril())
    symmetric = draws(lambda generator: (lambda x: x + x.T)(torch.randn(300, 300, generator=generator)))
    assert triangle.zeros is not None and int(triangle.zeros.sum()) == 300 * 299 // 2 and symmetric.is_symmetric
    square = torch.randn(300, 300)
    for item in DISTRIBUTIONS:
        generator = torch.Generator().manual_seed(3)
        made = transform(square.tril(), item, generator, structure=triangle)
        assert not bool(made.triu(1).any()), item
        if item.pattern == "few changed":
            assert 1 <= int((made != square.tril()).sum()) <= 3
        made = transform(square + square.T, item, generator, structure=symmetric).nan_to_num()
        assert torch.equal(made, made.T), item
        if item.pattern == "few changed":
            assert 1 <= int((made != square + square.T).sum()) <= 6


def test_a_structure_is_taken_away() -> None:
    triangle = draws(lambda generator: torch.rand(300, 300, generator=generator).tril())
    symmetric = draws(lambda generator: (lambda x: x + x.T)(torch.randn(300, 300, generator=generator)))
    square = torch.randn(300, 300)
    made = break_structure(square.tril(), triangle, torch.Generator().manual_seed(3))
    assert bool((made.triu(1) != 0).sum() == 300 * 299 // 2) and torch.equal(made.tril(), square.tril())
    made = break_structure(square + square.T, symmetric, torch.Generator().manual_seed(3))
    assert not torch.equal(made, made.T) and torch.equal(made.tril(), (square + square.T).tril())


def test_chance_is_no_structure() -> None:
    assert draws(lambda generator: torch.randn(64, 64, generator=generator).relu()) == PLAIN
    assert draws(lambda generator: torch.randint(0, 2, (64, 64), generator=generator).float()) == PLAIN
    assert draws(lambda generator: torch.ones(64, 64).tril()) == PLAIN
    lone = torch.rand(512, 512).tril()
    lone[400, 3] = 0.0  # one in 2**24 of a uniform draw
    assert structure_of(lone, torch.rand(512, 512).tril()).zeros is not None


def test_positive_inputs_stay_positive() -> None:
    for name in ("constant", "sparse", "few elements changed"):
        assert float(drawn(name, GIVEN.abs()).min()) >= 0


def test_a_nudge_is_one_unit_in_the_last_place() -> None:
    moved = nudge(GIVEN)
    assert 0 < float(((moved - GIVEN) / GIVEN).abs().max()) < 2.4e-7
    assert torch.equal(nudge(torch.arange(5)), torch.arange(5))


def test_under_stress_the_tolerance_is_the_budget_where_pytorch_itself_is_steady() -> None:
    limit = stress_limit(OutputError(1e-7, 1e-4), "float32", 1000)
    assert limit is not None and accepts(OutputError(9e-4, 0.9), limit)
    assert not accepts(OutputError(9e-4, 1.1), limit) and not accepts(OutputError(0.0, 0.0, misplaced=1), limit)
    assert stress_limit(OutputError(1e-3, 1e-4), "float32", 1000) is None
    assert stress_limit(OutputError(float("nan"), 0.0), "float32", 1000) is None


def test_a_question_that_overflows_is_asked_more_gently(tmp_path: Path) -> None:
    lines = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.prod(x, dim=1)\n"
    made = "def get_inputs():\n    return [1.6 * torch.randn(512, 256)]\n"
    (tmp_path / "task.py").write_text(f"import torch\nimport torch.nn as nn\n\n\n{lines}\n\n{made}")
    (case,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        case.trial(AS_GIVEN, 1)
        gentle = case.trial(BY_NAME["x3"], 2)
        assert "asked with x1.1" in gentle.note and gentle.distribution == BY_NAME["x3"]
        assert case.trial(BY_NAME["x-1"], 2).note == ""
        with pytest.raises(TaskError, match="overflow"):
            case.trial(BY_NAME["x100"], 2)


def test_what_pytorch_does_not_round_nobody_may_round(tmp_path: Path) -> None:
    model = "class Model(nn.Module):\n    def forward(self, x):\n        return x.sort().values, x.exp()\n"
    made = "def get_inputs():\n    return [torch.randn(64, 256)]\n"
    (tmp_path / "task.py").write_text(f"import torch\nimport torch.nn as nn\n\n\n{model}\n\n{made}")
    (case,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        for name in ("as given", "mixed exponents", "close together"):
            trial = case.trial(BY_NAME[name], 1)
            assert trial.exact == (True, False) and limit_of(trial.ieee[0], trial, 0) == OutputError(0.0, 0.0)
            assert limit_of(trial.ieee[1], trial, 1).norm > 0


def test_what_pytorch_may_have_by_tf32_hangs_on_no_single_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN takes another algorithm where memory is short: the same task is in TF32 in one call and not in the next."""
    model = "class Model(nn.Module):\n    def forward(self, x):\n        return x @ x.t()\n"
    made = "def get_inputs():\n    return [torch.randn(64, 256)]\n"
    (tmp_path / "task.py").write_text(f"import torch\nimport torch.nn as nn\n\n\n{model}\n\n{made}")
    (case,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    wide, narrow = OutputError(4e-4, 1.5), OutputError(2e-7, 1e-3)
    found = iter([[wide], [narrow], [narrow], [narrow]])
    monkeypatch.setattr(case, "_tf32_errors", lambda *given: next(found))
    with torch.no_grad():
        trials = [
            case.trial(BY_NAME[name], 1) for name in ("as given", "x-1", "few elements changed", "mixed exponents")
        ]
    assert [trial.tf32 for trial in trials] == [[wide], [wide], [narrow], [narrow]]


@pytest.mark.parametrize(("wide", "own"), [("double", 0.0), ("float", 1e-8)])
def test_a_truth_made_with_the_same_roundings_does_not_forbid_others(tmp_path: Path, wide: str, own: float) -> None:
    lines = f"x = x.{wide}()\n        return (x @ x.t()).sum(1)"
    model = f"class Model(nn.Module):\n    def forward(self, x):\n        {lines}\n"
    made = "def get_inputs():\n    return [torch.randn(64, 256)]\n"
    (tmp_path / "task.py").write_text(f"import torch\nimport torch.nn as nn\n\n\n{model}\n\n{made}")
    (case,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        trial = case.trial(BY_NAME["as given"], 1)
    assert own <= trial.ieee[0].norm <= 1e3 * own and limit_of(trial.ieee[0], trial, 0).norm > 1e-16
    case.close()


def test_a_later_case_knows_what_forward_updates(tmp_path: Path) -> None:
    lines = "class Model(nn.BatchNorm1d):\n    def __init__(self):\n        super().__init__(8)\n"
    made = "def get_inputs():\n    return [torch.randn(64, 8)]\n"
    (tmp_path / "task.py").write_text(f"import torch\nimport torch.nn as nn\n\n\n{lines}\n\n{made}")
    first, second = (next(cases_of(read_task(tmp_path / "task.py"), [seed], "cpu", only_first=True)) for seed in (3, 4))
    with torch.no_grad():
        first.trial(AS_GIVEN, 1).inputs.close()
        second.learn_from(first.learned)
        mutable = second.state("seeded").mutable
        assert len(mutable) == 2 and mutable == first.state("seeded").mutable
    first.close()
    second.close()


def test_under_stress_what_overflows_is_held_against_nobody(tmp_path: Path) -> None:
    model = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.exp(x)\n"
    made = "def get_inputs():\n    return [torch.randn(64, 256)]\n"
    (tmp_path / "task.py").write_text(f"import torch\nimport torch.nn as nn\n\n\n{model}\n\n{made}")
    (case,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        case.trial(AS_GIVEN, 1)
        (expected,) = case.trial(BY_NAME["x100"], 2).expected
    large = ~torch.isfinite(expected.truth)
    assert 0.1 < float(large.double().mean()) < 0.5
    wrong = torch.where(large, 7.0, expected.truth).float()
    assert accepts(measure(wrong, expected), OutputError(1e-6, 1.0))
    assert not accepts(measure(torch.where(large, wrong, torch.inf), expected), OutputError(1e-6, 1.0))


TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, x):
        return {body}


def get_inputs():
    return [torch.randn(96, 64)]
"""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("torch.relu(self.fc(x))", ""),
        ("self.fc(x).sum(1, keepdim=True).expand(96, 64)", ""),
        ("torch.softmax(self.fc(x), 1).mean(1)", "a constant is accepted"),
        ("self.fc(x) * 0", "zeros are accepted"),
        ("self.fc(x * 0)", "does not depend on the inputs"),
        ("x * torch.ones(64)", "its output is input 0"),
        ("(self.fc(x).amax(1, keepdim=True) - self.fc(x).amax(1, keepdim=True).mean(1, keepdim=True))", "zeros"),
        ("torch.nn.functional.gelu(torch.clamp(torch.minimum(self.fc(x), torch.zeros(())), min=0.0))", "zeros"),
        ("x + 0.0 * self.fc.bias.sum() * x", "its output is input 0"),
        ("torch.sign(x.mean().abs() + 1.0) * torch.ones(96, 64)", "a constant is accepted"),
        ("1e-9 * self.fc(x) + torch.arange(96.0).unsqueeze(1)", "does not depend on the inputs"),
        ("self.fc(x).square().mean() * 1e-9 + 2.0", "a constant is accepted"),
    ],
)
def test_tasks_that_prove_nothing(body: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK.replace("{body}", body))
    task = read_task(tmp_path / "task.py")
    (case,) = cases_of(task, [4], "cpu", only_first=True)
    with torch.no_grad():
        found = find_telling(case, case.trial(AS_GIVEN, 4), Seeds(4)).degenerate
    assert (why in found) if why else not found, found


@pytest.mark.parametrize(
    ("body", "inputs", "coincidence", "told_by"),
    [
        ("torch.relu(x)", "torch.rand(96, 64)", "its output is input 0", "few of the other sign"),
        ("torch.relu(x)", "-torch.rand(96, 64)", "zeros are accepted as its output", "few of the other sign"),
        ("torch.clamp(x, 0.0, 1.0)", "torch.rand(96, 64)", "its output is input 0", "few elements changed"),
        ("torch.tanh(x)", "10 + torch.rand(96, 64)", "a constant is accepted as its output", "few of the other sign"),
        ("torch.relu(self.fc(x)) + self.fc(x)", "torch.rand(96, 64)", "", ""),
    ],
)
def test_a_coincidence_of_the_inputs_as_given_is_told_by_another_question(
    body: str, inputs: str, coincidence: str, told_by: str, tmp_path: Path
) -> None:
    (tmp_path / "task.py").write_text(TASK.replace("{body}", body).replace("torch.randn(96, 64)", inputs))
    (case,) = cases_of(read_task(tmp_path / "task.py"), [4], "cpu", only_first=True)
    with torch.no_grad():
        found = find_telling(case, case.trial(AS_GIVEN, 4), Seeds(4))
    assert (found.coincidence, found.told_by, found.degenerate) == (coincidence, told_by, "")


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ("torch.relu(x)", "input_range = [0.0, 1.0]"),  # the task says that nothing else is ever asked
        ("x * (x.mean() > 0)", ""),  # a copy or zeros, by a glance at the inputs
        ("x + self.gain * self.fc(x)", ""),  # as timed, the gain is zero: a kernel sees that once and for all
    ],
)
def test_a_coincidence_that_no_single_question_tells_proves_nothing(body: str, options: str, tmp_path: Path) -> None:
    source = TASK.replace("{body}", body).replace("torch.randn(96, 64)", "torch.rand(96, 64)")
    source = source.replace("64, 64)\n", "64, 64)\n        self.gain = nn.Parameter(torch.zeros(64))\n", 1)
    (tmp_path / "task.py").write_text(source)
    (tmp_path / "task.toml").write_text(options)
    (case,) = cases_of(read_task(tmp_path / "task.py"), [4], "cpu", only_first=True)
    with torch.no_grad():
        found = find_telling(case, case.trial(AS_GIVEN, 4), Seeds(4))
    assert (found.degenerate, found.told_by) == ("its output is input 0", "")


def test_few_elements_get_the_other_sign_only_where_there_is_one() -> None:
    inside = torch.rand(30, 30)
    found = drawn("few of the other sign", inside)
    assert 1 <= int((found < 0).sum()) <= 3 and torch.equal(found[found >= 0], inside[found >= 0])
    assert int((drawn("few of the other sign", -inside) > 0).sum()) >= 1
    mixed = torch.randn(30, 30)
    assert torch.equal(drawn("few of the other sign", mixed), mixed)


def test_patterns_leave_a_declared_range_only_where_they_say_so() -> None:
    leaving = {item.name for item in DISTRIBUTIONS if item.leaves_range}
    assert leaving >= {"x3", "x100", "sparse", "one-hot rows", "non-finite"}
    assert not Distribution("constant", pattern="constant").leaves_range
    inside = torch.rand(30, 30)
    for name in ("constant", "few elements changed"):
        made = drawn(name, inside, limited=True)
        assert inside.min() <= made.min() and made.max() <= inside.max()


def test_masks_of_other_counts_have_a_power_of_two_of_one_kind() -> None:
    mask = torch.arange(384) < torch.randint(96, 385, (64, 1), generator=torch.Generator().manual_seed(1))
    made = drawn("masks of other counts", mask)
    counts = {int(row.sum()) for row in made}
    powers = {1 << bit for bit in range(9)}
    assert counts <= powers | {384 - power for power in powers} and {128, 384 - 256} & counts and len(counts) > 6
    assert drawn("masks of other counts", torch.ones(3, 1, dtype=torch.bool)).all()


def test_some_rows_of_a_mask_are_empty_and_some_full() -> None:
    mask = torch.rand(64, 384, generator=torch.Generator().manual_seed(1)) < 0.5
    made = drawn("empty and full masks", mask)
    kinds = [int(row.sum()) for row in made]
    assert kinds.count(0) == kinds.count(384) == 16
    assert sum(torch.equal(*pair) for pair in zip(made, mask, strict=True)) == 32
    assert not drawn("empty and full masks", mask[0]).any() and drawn("empty and full masks", mask[0, 0]) == mask[0, 0]


def test_parameters_negated_and_few_huge() -> None:
    state = {"p": torch.tensor([3.0]), "w": torch.randn(64, 64), "running_var": torch.ones(8)}
    draw = partial(draw_parameters, seeded=WholeTensors(state), chosen=set(state), learned={"p", "w"}, seed=5)
    negated, huge = whole_tensors(draw("negated")), whole_tensors(draw("few huge"))
    assert negated["p"].item() == -3.0 and torch.equal(negated["w"], -state["w"])
    assert torch.equal(negated["running_var"], state["running_var"]) and bool((huge["running_var"] > 0).all())
    assert 4 <= int((huge["w"].abs() > 100).sum()) <= 8 and huge["p"].abs() < 100


def test_numbers_that_change_places_keep_their_strides() -> None:
    rows = torch.arange(24).reshape(4, 6).t()
    moved = shuffle_rows(rows, torch.Generator().manual_seed(1))
    assert moved.stride() == rows.stride() and not torch.equal(moved, rows)
    assert torch.equal(moved.sort(dim=-1).values, rows.sort(dim=-1).values)


def test_few_directions_have_singular_values_of_very_different_sizes() -> None:
    values = torch.linalg.svdvals(drawn("few directions").double())
    assert values[0] > 20 * values[1] > 0


def test_elements_across_two_groups_are_larger_and_the_others_as_they_were() -> None:
    given = torch.randn(4, 90, 80)
    factor = drawn("two groups", given) / given
    assert factor.min() == 1.0 and factor.max() == 8.0 and set(factor.flatten().tolist()) == {1.0, 8.0}
    for matrix in factor:
        rows = matrix[:, matrix[0] == 8.0].mean(dim=1)  # columns of one group: each row is across from them, or not
        assert set(rows.tolist()) == {1.0, 8.0} and 0.2 < float((rows == rows[0]).float().mean()) < 0.8
    assert set((drawn("two groups", given[0, 0]) / given[0, 0]).tolist()) == {1.0, 8.0}


def test_edges_of_rows_get_a_nan() -> None:
    special = drawn("NaN at edges")
    assert int(special.isnan().sum()) == 2 and bool(special[:, 0].isnan().any()) and bool(special[:, -1].isnan().any())
