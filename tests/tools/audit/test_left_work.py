"""The work that the kernel compiler leaves to PyTorch, known from its plan: never more than the audit would measure."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from tests.knowledge.compiler.lowering import as_module
from torch.nn import functional

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.audit.acts.provenance import LARGEST_SHARE, refused_plan, torch_share
from foundry.tools.grade.runner.record import record_ops
from foundry.tools.task.capture import capture

Function = Callable[[torch.Tensor], torch.Tensor]
DEVICE = Device(
    "cpu", "Test CPU", "x86-64-v3", 2, 1 << 25, 32, 1 << 33, True, Ceilings(1e10, 1e11, 1e11, 1e11, 1e11, 2e-3, "")
)
LEFT: dict[str, Function] = {
    "pdist": functional.pdist,
    "mode": lambda x: torch.mode(x, -1).values,
    "igamma": lambda x: torch.igamma(x, x),
    "special_airy_ai": torch.special.airy_ai,
    "linalg_matrix_exp": torch.linalg.matrix_exp,
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
    def little(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.tanh(x) + torch.special.airy_ai(x[:1])
        return found

    def as_another_type(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.view(torch.int32).float()) + x

    for function, kind in ((as_another_type, "view"), (little, "special_airy_ai")):
        graph = capture(as_module(function), [torch.rand(256, 256)])
        lowered = lower([graph], Recipe("cpu"), task_source="", device=DEVICE)
        assert [item.kind for item in lowered.left] == [kind]
        assert refused_plan(lowered.left, graph, "fair") == ""


def test_a_task_of_one_operator_without_a_kernel_names_it() -> None:
    graph = capture(as_module(functional.pdist), [torch.rand(8, 8)])
    with pytest.raises(CannotLower, match="no kernel for pdist, and nothing else is computed"):
        lower([graph], Recipe("cpu"), task_source="", device=DEVICE)


# ---------------------------------------------------------------- operators that are not written for one task


def lowered_with(function: Function, *inputs: torch.Tensor) -> tuple[Lowered, OpGraph]:
    graph = capture(as_module(function), list(inputs))
    return lower([graph], Recipe("cpu"), task_source="", device=DEVICE), graph


def test_a_foreign_operator_between_own_kernels_may_be_left_to_pytorch() -> None:
    def eigenvalues(x: torch.Tensor) -> torch.Tensor:
        return torch.log1p(torch.linalg.eigvalsh(torch.tanh(x) @ torch.tanh(x).mT))

    lowered, graph = lowered_with(eigenvalues, torch.rand(64, 8, 8))
    assert [item.kind for item in lowered.left] == ["linalg_eigvalsh"]
    assert refused_plan(lowered.left, graph, "fair") == ""
    alone, whole = lowered_with(lambda x: torch.linalg.eigvalsh(x).exp(), torch.rand(64, 8, 8))
    assert refused_plan(alone.left, whole, "fair") == ""


def test_the_message_says_each_operator_s_share_and_what_is_allowed() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.special.airy_ai(torch.tanh(x))) + torch.mode(x, -1, keepdim=True).values

    lowered, graph = lowered_with(two, torch.rand(64, 64))
    said = refused_plan(lowered.left, graph, "fair")
    assert re.search(r"no kernel for special_airy_ai \(line \d+\), mode \(line \d+\)", said)
    assert re.search(r"(\d+) % of the work \(special_airy_ai \(line \d+\) \d+ %, mode \(line \d+\) [\d.]+ %\)", said)
    assert re.search(r"policy fair leaves it at most 2 %, \d+ % less", said)
