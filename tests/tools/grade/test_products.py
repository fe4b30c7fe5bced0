"""Which products the judge finds rounded to TF32 where PyTorch may use it, on a CPU that pretends to have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import graph_of
from tests.mixed_arithmetic import TASKS
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.errors import TaskError
from foundry.knowledge.opgraph import ProductRun, product_size, unrounded_products
from foundry.tools.grade.questions.freedom.products import products_ran


class Tf32Device(TorchDispatchMode):
    """Rounds operands of products to 11 bits where the flag allows it, but for those that `leaves_out` names."""

    def __init__(self, leaves_out: Callable[[str, torch.Tensor], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.leaves_out = leaves_out

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = func._schema.name.split("::")[-1]
        is_allowed = torch.backends.cuda.matmul.allow_tf32 and product_size(kind, 0, 1) is not None
        if is_allowed and not self.leaves_out(kind, args[1]):
            args = [rounded(item) if isinstance(item, torch.Tensor) else item for item in args]
        return func(*args, **(kwargs or {}))


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp((mantissa * 2048).round() / 2048, exponent)


@pytest.fixture(autouse=True)
def ieee() -> Iterator[None]:
    """The judge's own setting."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def task(name: str) -> tuple[Any, Any]:
    space: dict[str, Any] = {}
    exec(TASKS[name], space)
    return space["Model"](), space["get_inputs"]()


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("rounds", [True, False])
def test_each_product_of_the_graph_is_known(name: str, rounds: bool) -> None:
    model, inputs = task(name)
    graph = graph_of(model, *inputs)
    with torch.no_grad(), Tf32Device(lambda kind, operand: not rounds):
        found = products_ran(lambda: model(*inputs))
    products = [op for op in graph.ops if product_size(op.kind, op.flops, 1)]
    assert len(found) == len(products)
    for op in products:
        size = product_size(op.kind, op.flops, torch.Size(op.outputs[0].spec.shape).numel())
        assert size in {(run.elements, run.depth) for run in found}, op.name
    assert unrounded_products(graph, found) == (() if rounds else tuple(op.name for op in products))


def test_a_grouped_convolution_that_cudnn_leaves_in_ieee_is_told_from_the_other() -> None:
    model, inputs = task("groups")
    with torch.no_grad(), Tf32Device(lambda kind, operand: operand.shape[-1] == 5):
        found = products_ran(lambda: model(*inputs))
    assert unrounded_products(graph_of(model, *inputs), found) == ("conv1d",)
    assert not torch.backends.cuda.matmul.allow_tf32


def test_a_model_that_does_not_run_while_it_is_watched_tells_nothing() -> None:
    def fails() -> None:
        raise TaskError("no")

    assert products_ran(fails) == ()


def test_only_products_of_float32_are_asked() -> None:
    a = torch.randn(8, 8)
    found = products_ran(lambda: (a @ a, a.double() @ a.double(), a.bfloat16() @ a.bfloat16(), a + a))
    assert found == (ProductRun(64, 8, False),)
