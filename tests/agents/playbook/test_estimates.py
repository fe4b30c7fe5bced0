"""Predictions for configurations that were not measured, from this run's measurements and those on other graphs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

from foundry.agents.playbook.estimates import Elsewhere, Estimates, tunables_of
from foundry.knowledge.experience.record import KernelChoices, Known

TILES, STAGES, MODES = (16, 32, 64, 128), (2, 3, 4), ("near", "far", "both")
SPACE = list(itertools.product(TILES, STAGES, MODES))


def effect(tile: int, stages: int, mode: str) -> float:
    """The logarithm of a speedup: tile 64 and three stages are best, and "far" costs."""
    return -0.2 * abs(TILES.index(tile) - 2) - 0.1 * abs(stages - 3) - 0.3 * (mode == "far")


def kernel(point: tuple[int, int, str], template: str = "row") -> KernelChoices:
    tile, stages, mode = point
    return KernelChoices("k0", template, f"{template}:sum", 1.0, {"tile": tile, "stages": stages, "mode": mode})


def measured(points: Sequence[tuple[int, int, str]], run: str = "", graph: str = "", shift: float = 0.0) -> list[Known]:
    return [Known(run, "one", (kernel(point),), effect(*point) + shift, 0.02, graph) for point in points]


def estimates_of(known: Sequence[Known]) -> Estimates:
    own, others = [item for item in known if not item.run], [item for item in known if item.run]
    return Estimates(own, Elsewhere(others, tunables_of(own)))


WANTED = [Known("", "one", (kernel(point),), 0.0, 0.0) for point in SPACE]


def found(known: Sequence[Known]) -> float:
    """The distance from the best of the configuration that is expected to be the best."""
    mean = estimates_of(known).of(WANTED).mean
    return effect(64, 3, "near") - effect(*SPACE[int(mean.argmax())])


def test_few_measurements_lead_to_the_best_of_many() -> None:
    points = random.Random(1).sample(SPACE, 10)
    assert found(measured(points)) <= 0.1 < min(effect(64, 3, "near") - effect(*point) for point in points) + 0.11
    estimates = estimates_of(measured(points))
    known, unknown = (estimates.of([item]) for item in (measured(points)[0], measured([(16, 2, "far")])[0]))
    assert known.deviation[0] < 0.05 < unknown.deviation[0]


def test_other_runs_complete_what_is_not_known_here_and_are_ignored_where_they_disagree() -> None:
    own = measured([(16, 2, "far"), (16, 3, "far"), (16, 2, "near"), (32, 2, "far"), (16, 4, "both")], shift=1.0)
    others = measured(random.Random(2).sample(SPACE, 20), "r1", "g1")
    assert found([*own, *others]) == 0.0 < found(own)
    upside_down = [replace(item, log_speedup=-item.log_speedup) for item in others]
    assert found([*own, *upside_down]) <= found(own) + 0.1
    strangers = [replace(item, kernels=(replace(item.kernels[0], template="gemm"),)) for item in others]
    assert abs(found([*own, *strangers]) - found(own)) < 0.11


def test_what_fails_is_expected_to_fail_again() -> None:
    points = [point for point in SPACE if point[0] != 128][:12]
    broken = [Known("", "one", (kernel((128, stages, "near")),), 0.0, 0.0, failed=True) for stages in (2, 3)]
    mean = estimates_of([*measured(points), *broken]).of([WANTED[SPACE.index((128, 4, "near"))], WANTED[0]]).mean
    assert mean[0] < mean[1]


def test_two_kernels_of_one_template_learn_from_earlier_runs() -> None:
    def both(one: tuple[int, int, str], other: tuple[int, int, str]) -> Known:
        first, second = replace(kernel(one), share=0.5), replace(kernel(other), share=0.5, place="row:max", name="k1")
        return Known("", "two", (first, second), effect(*one) + effect(*other), 0.01)

    own = [both(one, other) for one, other in zip(SPACE[:9], SPACE[8::-1], strict=True)]
    own += [Known("", "one", (kernel(one),), effect(*one), 0.01) for one in SPACE[:9]]
    own += [replace(item, kernels=(replace(item.kernels[0], place="row:max"),)) for item in own[9:]]
    earlier = [Known("r", "one", (kernel(one),), effect(*one), 0.01, "", "elsewhere") for one in SPACE[:9]]
    estimates = estimates_of([*own, *earlier])
    assert (estimates.of(own).deviation > 0).all() and abs(estimates.best) < 2.0


def test_several_runs_of_one_other_graph_are_one_graphs_word() -> None:
    """Each of five runs repeats what one graph measured; two other graphs say the opposite."""
    points = random.Random(2).sample(SPACE, 12)
    repeated = [item for run in range(5) for item in measured(points, f"r{run}", "g0")]
    once = [replace(item, log_speedup=-item.log_speedup) for item in measured(points, "s", "g1")]
    again = [replace(item, run="t", graph="g2") for item in once]
    own = measured([(32, 3, "both")])
    best, worst = measured([(64, 3, "near")]), measured([(16, 2, "far")])

    def lead(others: Sequence[Known]) -> float:
        estimates = Estimates(own, Elsewhere(others, tunables_of(own)))
        return float(estimates.of(best).mean[0] - estimates.of(worst).mean[0])

    assert lead(repeated) > 0.2 and lead(once) < -0.2
    assert lead([*repeated, *once, *again]) < 0.0


def test_who_knows_nothing_of_earlier_runs_learns_how_much_each_number_matters() -> None:
    """Only the tile matters here: after some measurements, configurations that differ in other tunables count as
    alike."""
    points = [point for point in SPACE if point[0] != 64][::2]
    own = [Known("", "one", (kernel(point),), float(TILES.index(point[0])), 0.01) for point in points]
    estimates = Estimates(own)
    near, far = measured([(128, 2, "both")]), measured([(16, 2, "both")])
    assert estimates.of(near).mean[0] - estimates.of(far).mean[0] > 0.7
    pending = estimates.believing(near)
    assert pending.of(near).deviation[0] < estimates.of(near).deviation[0] and estimates.believing(()) is estimates
