"""Other answers of PyTorch to one question, which are as right as its own. Runs in the judge (imports torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from foundry.knowledge.opgraph import ProductRun
from foundry.tools.grade.questions.freedom.products import products_ran
from foundry.tools.grade.questions.freedom.roundings import with_roundings
from foundry.tools.grade.questions.freedom.selections import SelectedPlaces, in_choices, selections
from foundry.tools.grade.questions.freedom.ties import in_orders
from foundry.tools.task import loading
from foundry.tools.task.bundle import Parcel

Outputs = list[torch.Tensor]


@dataclass(frozen=True)
class Reruns:
    """Equally right answers of the reference to a question, each computed on demand.

    `orders`: with equal elements in other orders, two answers or none. `roundings`: with results moved by up to so many
    units in the last place, in so many ways. `choices`: with other places of extremes, of values that tie by rounding.
    `selections`: which places the model selects by value. `products`: which of its products it rounds to TF32, if any
    may be.
    """

    orders: Callable[[], Iterator[Outputs]] = lambda: iter(())
    roundings: Callable[[float, int], Iterator[Outputs]] = lambda units, ways: iter(())
    choices: Callable[[], Iterator[Outputs]] = lambda: iter(())
    selections: Callable[[], Iterator[SelectedPlaces]] = lambda: iter(())
    products: Callable[[], tuple[ProductRun, ...]] = tuple


def reruns_of(
    own: Callable[[Any], Outputs], exact: Callable[[Any], object], given: Parcel, *, may_order: bool
) -> Reruns:
    """Bundles reruns of a reference, in its own dtypes (`own`) and float64 (`exact`), each run on demand on a copy of
    the inputs. Other orders of equal elements only if `may_order`: the task's text mentions sorting."""

    def run() -> Outputs:
        """The reference's outputs in its own dtypes, for a copy of the given inputs."""
        return own(loading.flatten(given.value()))

    orders = partial(in_orders, run) if may_order else Reruns.orders
    in_float64 = lambda: exact(loading.flatten(given.value()))  # noqa: E731
    return Reruns(
        orders=orders,
        roundings=partial(with_roundings, run),
        choices=partial(in_choices, run),
        selections=partial(selections, in_float64, run),
        products=partial(products_ran, run),
    )
