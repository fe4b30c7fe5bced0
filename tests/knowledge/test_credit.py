"""Credit of moves, fitted to steps whose moves have known effects."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from foundry.knowledge.experience.credit import MeasuredStep, fit, nearest
from foundry.knowledge.experience.record import Credit, Query
from foundry.knowledge.experience.store import ExperienceStore

from .test_experience import QUERY, lesson


def step(log_lift: float, *moves: str, graph: str = "sig-softmax", shape: str = QUERY.shape_class) -> MeasuredStep:
    made = {move: moves.count(move) for move in moves}
    ids = {move: f"id-{move}" for move in moves}
    where = (graph, shape, QUERY.device, QUERY.limiter, frozenset(QUERY.op_kinds))
    return MeasuredStep(*where, made, log_lift, 0.02, ids)


def credits_of(steps: Sequence[MeasuredStep], query: Query = QUERY) -> dict[str, Credit]:
    return {credit.move: credit for credit in fit(nearest(steps, query), query)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperienceStore]:
    opened = ExperienceStore.open(tmp_path / "store")
    yield opened
    opened.close()


def test_known_effects_are_found_in_steps_of_several_moves() -> None:
    stream = random.Random(3)
    effects = {f"row:set:number={number}": stream.uniform(-0.4, 0.4) for number in range(8)}
    steps = []
    for _ in range(150):
        moves = stream.sample(sorted(effects), stream.randint(2, 4))
        steps.append(step(sum(effects[move] for move in moves) + stream.gauss(0.0, 0.1), *moves))
    found = credits_of(steps)
    assert found.keys() == effects.keys()
    for move, effect in effects.items():
        assert found[move].log_effect == pytest.approx(effect, abs=0.08)
        assert found[move].low < math.exp(effect) < found[move].high
    assert list(found) == sorted(found, key=lambda move: -found[move].log_effect)


def test_moves_that_were_only_made_together_share_their_credit_until_a_step_has_made_them_apart() -> None:
    together = [step(0.6, "row:set:team=8", "gemm:set:stages=3") for _ in range(30)]
    one, other = fit(together, QUERY)
    assert one.log_effect == pytest.approx(other.log_effect) == pytest.approx(0.3, abs=0.02)
    assert one.low < 1.0 < math.exp(0.6) < one.high and one.alone == 0
    assert (
        "never made without team 8 in row kernels"
        in next(credit for credit in (one, other) if "gemm" in credit.move).words
    )
    found = credits_of([*together, *(step(0.0, "row:set:team=8") for _ in range(8))])
    alone, rest = found["row:set:team=8"], found["gemm:set:stages=3"]
    assert alone.log_effect < 0.1 < 0.45 < rest.log_effect
    assert rest.low > 1.0 and rest.deviation < 0.75 * one.deviation and alone.alone == 8 and alone.inseparable == ()


def test_a_new_graph_believes_its_template_and_its_own_steps_more() -> None:
    everywhere = [step(0.4, "row:set:unroll=4", graph=f"sig-{number}", shape=f"{number}d") for number in range(20)]
    elsewhere = credits_of(everywhere)["row:set:unroll=4"]
    assert 1.2 < elsewhere.effect < 1.5 and (elsewhere.steps, elsewhere.here) == (20, 0)
    same_size = [dataclasses.replace(item, shape_class=QUERY.shape_class) for item in everywhere]
    assert credits_of(same_size)["row:set:unroll=4"].deviation < elsewhere.deviation
    own = [step(-0.2, "row:set:unroll=4") for _ in range(12)]
    assert credits_of([*everywhere, *own])["row:set:unroll=4"].effect < 0.75 * elsewhere.effect
    strangers = [dataclasses.replace(item, op_kinds=frozenset(["conv2d"])) for item in everywhere]
    assert credits_of(strangers) == {}


def test_a_lesson_keeps_what_its_move_was_credited_with_when_it_was_booked(store: ExperienceStore) -> None:
    both = {"row:set:team=8": 1, "gemm:set:stages=3": 1}
    made = [lesson(1, move=move, id=f"one-{move}", together=both, child_speedup=1.5) for move in both]
    store.add(made)
    first = store.booked([record.id for record in made])
    assert [credit.steps for credit in first] == [1, 1] and first[0].log_effect == pytest.approx(first[1].log_effect)
    assert store.add(made) == 0 and store.booked([record.id for record in made]) == first  # booked once
    store.add([lesson(2, move="row:set:team=8", child_speedup=1.0)])
    now = {credit.move: credit for credit in store.credits(QUERY)}
    assert now["row:set:team=8"].effect < now["gemm:set:stages=3"].effect
    assert store.show(made[0].id).credit in first  # what was booked stays as it was
    assert store.overview("cpu", "softmax") == store.credits(QUERY)
    store.forget([made[1].id])  # half of what that step did is not known any more
    assert [(credit.move, credit.steps) for credit in store.credits(QUERY)] == [("row:set:team=8", 1)]
