"""The choice of parents without any strategy."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from foundry.graph.nodes.island.select import _draw_parent
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.services import Services
from foundry.graph.search.state import IslandState
from foundry.knowledge.merit import Estimate

STATE = IslandState(memory={}, population={})


def services(known: dict[str, Estimate], seed: int = 0) -> Any:
    """Services of which the choice asks only this."""
    given = SimpleNamespace(
        request=SolveRequest("task.py", seed=seed), estimate=lambda name, _: known.get(name), stream=None
    )
    given.stream = lambda step: Services.stream(cast("Any", given), step)
    return given


async def draw(candidates: dict[str, float], known: dict[str, Estimate], times: int) -> Counter[str]:
    return Counter([await _draw_parent(STATE, candidates, f"i0g{step}", services(known)) for step in range(times)])


async def test_of_equally_probable_parents_each_is_the_best_as_often_and_a_loud_one_as_it_may_be() -> None:
    """c1 and c4 are equally fast, c3 may be, c2 is not. Merit alone always takes the older of two equals."""
    known = {"c4": Estimate(1.0, 0.01), "c1": Estimate(1.0, 0.01), "c3": Estimate(0.9, 0.2), "c2": Estimate(0.5, 0.01)}
    candidates = {name: 1.0 + one.cautious for name, one in known.items()}
    drawn, alone = await draw(candidates, known, 800), await draw(candidates, {}, 800)
    assert abs(drawn["c4"] - drawn["c1"]) < 100 < alone["c1"] - alone["c4"]
    assert drawn["c3"] > 1.5 * alone["c3"] and 0 < drawn["c2"] <= alone["c2"]


async def test_parents_are_chosen_by_merit_and_a_step_draws_the_same_again() -> None:
    candidates = {"c1": 3.0, "c2": 2.0, "c3": 1.1}
    drawn = await draw(candidates, {}, 600)
    assert drawn["c1"] > drawn["c2"] > drawn["c3"] > 0 and drawn["c1"] > 350
    again = {await _draw_parent(STATE, candidates, "i0g1", services({}, seed=7)) for _ in range(3)}
    assert len(again) == 1
