"""A row kernel's passes, the values kept between them and its tunables, before any target spells them."""

from __future__ import annotations

from foundry.knowledge.compiler.cuda.rows.steps import EmitPass, ReducePass, steps_of
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.schedule.kept import kept_bytes, values_of_all_passes, values_of_later_sweeps
from foundry.knowledge.compiler.schedule.passes import Stage, find_softmax_pairs, schedule_passes, split_statistics
from foundry.knowledge.compiler.schedule.tuning import Tuning

X = ir.Load("x", ir.View(0, (64, 1)), "float32")
Y = ir.Load("y", ir.View(0, (64, 1)), "bfloat16")
MEAN = ir.Named("m.mean", "float32")


def _apply(op: str, *args: ir.Expr) -> ir.Apply:
    return ir.Apply(op, args, "float32")


def _emit(value: ir.Expr) -> ir.Emit:
    return ir.Emit(ir.Store("out", ir.View(0, (64, 1)), value))


def _softmax() -> list[Stage]:
    top = ir.Named("top", "float32")
    exponential = _apply("exp", _apply("sub", X, top))
    return [
        ir.Reduction("top", "max", X, "float32"),
        ir.Reduction("total", "sum", exponential, "float32"),
        _emit(_apply("div", exponential, ir.Named("total", "float32"))),
    ]


def test_a_store_joins_the_earliest_pass_or_waits_for_the_last() -> None:
    stages: list[Stage] = [_emit(_apply("exp", X)), ir.Reduction("s", "sum", X, "float32")]
    early = schedule_passes(stages, online=False)
    assert [(len(item.reductions), len(item.emits)) for item in early.passes] == [(1, 1)]
    late = schedule_passes(stages, online=False, stores_last=True)
    assert [(len(item.reductions), len(item.emits)) for item in late.passes] == [(1, 0), (0, 1)]


def test_both_targets_spell_the_same_passes() -> None:
    stages = _softmax()
    assert list(find_softmax_pairs(stages)) == ["top"]
    for online, count in ((False, 3), (True, 2)):
        assert len(schedule_passes(stages, online=online).passes) == count
        steps = steps_of(stages, online=online)
        assert [type(step) for step in steps] == [ReducePass] * (count - 1) + [EmitPass]


def test_a_maximum_of_another_value_is_no_softmax() -> None:
    stages = [ir.Reduction("top", "max", Y, "float32"), *_softmax()[1:]]
    assert find_softmax_pairs(stages) == {}


def test_moments_become_two_exact_passes() -> None:
    stages: list[Stage] = [ir.Reduction("m", "moments", X, "float32"), _emit(_apply("sub", X, MEAN))]
    split = split_statistics(stages, 64)
    assert [getattr(stage, "name", "store") for stage in split] == ["m.sum", "m.mean", "m.m2", "store"]
    assert len(schedule_passes(split, online=False).passes) == 2


def test_kept_values_hold_no_result_of_a_reduction_and_are_as_narrow_as_memory() -> None:
    both = _apply("mul", _apply("gelu", X), _apply("cast", Y))
    passes = [[both], [_apply("sub", both, MEAN)]]
    assert values_of_all_passes(passes, outer=1) == [both]
    widened = _apply("cast", Y)
    assert values_of_all_passes([[widened], [_apply("sub", widened, MEAN)]], outer=1) == [Y]
    assert kept_bytes([Y]) == 2
    assert kept_bytes([both]) == 4


def test_later_sweeps_keep_what_costs_more_than_a_load() -> None:
    costly = _apply("exp", X)
    assert values_of_later_sweeps([[costly], [costly]], frozenset()) == [costly]
    assert values_of_later_sweeps([[X], [X]], frozenset({id(X)})) == []


def test_a_choice_that_is_not_legal_gives_way_to_the_default() -> None:
    tuning = Tuning({"vector": 3, "team": 8})
    assert tuning.number("vector", (1, 2, 4), 4, "vector", "") == 4
    assert tuning.number("team", (8,), 8, "parallel", "") == 8
    assert [item.name for item in tuning.tunables] == ["vector"]
    fixed = Tuning({}, declares_fixed=True)
    fixed.number("team", (8,), 8, "parallel", "")
    assert [item.name for item in fixed.tunables] == ["team"]
