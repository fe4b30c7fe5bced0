"""The first kernels are as accurate as PyTorch's own run: what it does not round to TF32 they do not either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from foundry.graph.run.events import Event
from foundry.graph.run.request import SolveRequest
from foundry.graph.search.first_texts import ARITHMETIC
from foundry.graph.solve import solve
from foundry.knowledge.candidate import Baseline, Unrounded
from foundry.knowledge.opgraph import Op, OpGraph, ProductRun, Ref, TensorSpec, Value

SPEC = TensorSpec((1024, 1024), (1024, 1), "float32")


def two_products() -> OpGraph:
    """(x @ x)[:, :512] @ y, of different depths."""
    x, y = Value("x", SPEC, "input", "0"), Value("y", TensorSpec((512, 1024), (1024, 1), "float32"), "input", "1")
    first = Op("aten.mm.default", [Ref("x"), Ref("x")], {}, [Value("first", SPEC, "op")], flops=2 << 30)
    second = Op("aten.mm.default", [Ref("first"), Ref("y")], {}, [Value("second", SPEC, "op")], flops=1 << 30)
    return OpGraph([x, y], [], [first, second], [Ref("second")], "export")


@pytest.mark.parametrize(
    ("target", "runs", "is_ieee", "products"),
    [
        ("cuda", (ProductRun(1 << 20, 1024, True), ProductRun(1 << 20, 512, False)), False, ("second",)),
        ("cuda", (ProductRun(1 << 20, 1024, True), ProductRun(1 << 20, 512, True)), True, ()),
        ("cuda", (), True, ("first", "second")),
        ("cuda", (), False, ()),
        ("cpu", (), True, ()),
    ],
)
async def test_the_library_is_told_what_pytorch_does_not_round(
    make_request: Callable[..., SolveRequest],
    parts: Any,
    library: Any,
    machine: Any,
    target: str,
    runs: tuple[ProductRun, ...],
    is_ieee: bool,
    products: tuple[str, ...],
) -> None:
    told: list[Unrounded] = []

    class Told(library):  # type: ignore[misc]
        def seeds(self, graph: Any, device: Any, unrounded: Any = None) -> Any:
            told.extend([unrounded] if unrounded else [])
            return super().seeds(graph, device)

    class Machine(machine):  # type: ignore[misc]
        async def intake(self) -> Any:
            return replace(await super().intake(), graphs=[two_products()])

        async def baseline(self) -> Baseline:
            found: Baseline = await super().baseline()
            return replace(found, is_ieee=is_ieee, products=runs, unrounded=("norm.running_mean",))

    bench, events = Machine(), list[Event]()
    bench.device = replace(bench.device, target=target)
    summary = await solve(make_request(4), events.append, parts=parts(bench, library=Told()))
    assert summary.verdict == "accepted"
    expected = Unrounded(("norm.running_mean",), products) if target == "cuda" else Unrounded()
    assert told[0] == expected
    said = [event.data["reason"] for event in events if event.name == ARITHMETIC]
    assert bool(said) == bool(products)
    if len(products) == 1:
        assert said[0].startswith("PyTorch computes 1 of 2 products without TF32, though it may use it (second)")
