"""The work that the kernel compiler leaves to PyTorch, known from its plan: never more than the audit would measure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.knowledge.compiler.lowering import as_module
from torch.nn import functional

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.errors import CannotLower
from foundry.tools.audit.acts.provenance import LARGEST_SHARE, refused_plan, torch_share
from foundry.tools.grade.runner.record import record_ops
from foundry.tools.task.capture import capture

Function = Callable[[torch.Tensor], torch.Tensor]
DEVICE = Device(
    "cpu", "Test CPU", "x86-64-v3", 2, 1 << 25, 32, 1 << 33, True, Ceilings(1e10, 1e11, 1e11, 1e11, 1e11, 2e-3, "")
)
LEFT: dict[str, Function] = {
    "pdist": functional.pdist,
    "quantile": lambda x: torch.quantile(x, 0.5, -1),
    "nextafter": lambda x: torch.nextafter(x, -x),
    "hstack": lambda x: torch.hstack([x, x]),
    "nanmean": torch.nanmean,
}


@pytest.mark.parametrize("kind", LEFT)
def test_a_plan_is_refused_where_the_audit_would_veto_its_kernel(kind: str) -> None:
    x = torch.rand(64, 64)
    graph = capture(as_module(lambda x: torch.relu(LEFT[kind](torch.tanh(x) * 2)) + 1), [x])
    lowered = lower([graph], Recipe("cpu"), task_source="", device=DEVICE)
    assert [item.kind for item in lowered.left] == [kind]
    assert f"no kernel for {kind} (line {lowered.left[0].line}), so that" in refused_plan(lowered.left, graph, "fair")
    assert refused_plan(lowered.left, graph, "open") == ""
    share = torch_share(record_ops(lambda: LEFT[kind](x)), graph)
    assert share is not None and share > LARGEST_SHARE


def test_what_pytorch_does_by_views_and_what_is_little_is_tried() -> None:
    def views(x: torch.Tensor) -> torch.Tensor:
        first, second = torch.meshgrid(torch.tanh(x[0]), x[1], indexing="ij")
        return first * second + x

    def little(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) + torch.lgamma(x[:1])

    for function, kind in ((views, "meshgrid"), (little, "lgamma")):
        graph = capture(as_module(function), [torch.rand(256, 256)])
        lowered = lower([graph], Recipe("cpu"), task_source="", device=DEVICE)
        assert [item.kind for item in lowered.left] == [kind]
        assert refused_plan(lowered.left, graph, "fair") == ""


def test_a_task_of_one_operator_without_a_kernel_names_it() -> None:
    graph = capture(as_module(functional.pdist), [torch.rand(8, 8)])
    with pytest.raises(CannotLower, match="no kernel for pdist, and nothing else is computed"):
        lower([graph], Recipe("cpu"), task_source="", device=DEVICE)
