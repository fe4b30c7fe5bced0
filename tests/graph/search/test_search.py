"""The archive, its gradients, the choice of parents."""

from __future__ import annotations

import random
from collections import Counter

from foundry.graph.search.strategies.archive import Archive, best, cell_of, insert
from foundry.graph.search.strategies.gradients import Transition, choose_parent, gradient, hints, remember
from foundry.knowledge.candidate import Coordinates
from foundry.knowledge.merit import Estimate


def test_a_cell_keeps_its_best_and_a_tie_keeps_the_older() -> None:
    cell = cell_of(Coordinates(1, 2, 0))
    archive, gain = insert({}, "c1", cell, 2.0)
    assert gain == "new cell" and cell == "120"
    archive, gain = insert(archive, "c2", cell, 2.0)
    assert gain == "" and archive["120"]["candidate"] == "c1"
    archive, gain = insert(archive, "c3", cell, 2.1)
    assert gain == "better elite" and archive["120"]["candidate"] == "c3"
    archive, _ = insert(archive, "c4", "000", 5.0)
    assert len(archive) == 2
    top = best(archive)
    assert top is not None and top["candidate"] == "c4"


def test_gradients_point_where_improvement_came_from() -> None:
    archive: Archive = {"110": {"candidate": "c1", "merit": 2.0}}
    transitions: list[Transition] = []
    for _ in range(4):
        transitions = remember(transitions, ("110", "210", 2.0, 3.0))  # memory up: better
        transitions = remember(transitions, ("110", "120", 2.0, 1.2))  # algorithm up: worse
    memory, algorithm, _ = gradient("110", transitions, archive)
    assert memory > 0.4 > 0 > algorithm
    found = hints("110", transitions, archive)
    assert (found[0].coordinate, found[0].direction) == ("d_mem", "up") and found[0].strength == memory
    assert ("d_algo", "down") in [(hint.coordinate, hint.direction) for hint in found]


def test_without_transitions_there_is_no_hint_and_only_exploration_pulls() -> None:
    archive: Archive = {"000": {"candidate": "c1", "merit": 2.0}}
    assert hints("000", [], archive) == ()
    assert all(0 < value <= 0.2 for value in gradient("000", [], archive))


def test_of_equally_probable_parents_each_is_the_best_as_often_and_a_loud_one_as_it_may_be() -> None:
    """c1 and c4 are equally fast, c3 may be, c2 is not. Merit alone always takes the older of two equals."""
    known = {"c4": Estimate(1.0, 0.01), "c1": Estimate(1.0, 0.01), "c3": Estimate(0.9, 0.2), "c2": Estimate(0.5, 0.01)}
    candidates = {name: ("000", 1.0 + one.cautious) for name, one in known.items()}
    archive: Archive = {"000": {"candidate": "c4", "merit": candidates["c4"][1]}}
    drawn = Counter(choose_parent(candidates, known, [], archive, random.Random(seed)) for seed in range(800))
    alone = Counter(choose_parent(candidates, {}, [], archive, random.Random(seed)) for seed in range(800))
    assert abs(drawn["c4"] - drawn["c1"]) < 100 < alone["c1"] - alone["c4"]
    assert drawn["c3"] > 1.5 * alone["c3"] and 0 < drawn["c2"] <= alone["c2"]


def test_parents_are_chosen_by_merit_and_by_gradient() -> None:
    candidates = {"c1": ("000", 3.0), "c2": ("110", 2.0), "c3": ("220", 1.1)}
    archive: Archive = {cell: {"candidate": name, "merit": value} for name, (cell, value) in candidates.items()}
    rich: list[Transition] = [("220", "230", 1.1, 2.2)] * 6
    drawn = Counter(choose_parent(candidates, {}, rich, archive, random.Random(seed)) for seed in range(600))
    assert drawn["c1"] > drawn["c2"] > drawn["c3"] > 0 and drawn["c1"] > 350
    merits = Counter(choose_parent(candidates, {}, [], {}, random.Random(seed)) for seed in range(600))
    assert drawn["c3"] > merits["c3"]
    same = [choose_parent(candidates, {}, rich, archive, random.Random("7:i0g1")) for _ in range(3)]
    assert len(set(same)) == 1
