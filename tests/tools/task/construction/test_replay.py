"""A replay of a constructor: the same tensors, made without the package that the class comes from."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tools.task.construction.tiny_package import CPU, DEVICE, install, model_of, seeded, stack, task_of

from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.task import foreign_imports
from foundry.tools.task import loading
from foundry.tools.task.file import read_task
from foundry.tools.task.intake import captured_case


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from install(tmp_path, monkeypatch)


def test_what_torch_does_not_bring_is_foreign() -> None:
    text = (
        "import torch.nn as nn\nimport numpy as np, einops.layers\nfrom .beside import f\n\ndef g():\n    import timm\n"
    )
    assert foreign_imports(text + "from dataclasses import dataclass\n") == ("einops", ".beside", "timm")


@pytest.mark.parametrize("seed", [0, 1, 20])
def test_a_replay_holds_the_models_tensors_under_any_seed(seed: int, tmp_path: Path) -> None:
    task = stack(tmp_path, options="")
    settings = task.module.tinylayers.Settings(8, 2)
    skeleton = model_of(captured_case(task, CPU))
    own, other = seeded(lambda: task.module.Model(settings), seed), seeded(lambda: skeleton(settings), seed)
    assert list(own.state_dict()) == list(other.state_dict())
    for (name, one), (_, two) in zip(own.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(one, two) and one.requires_grad == two.requires_grad and one.stride() == two.stride(), name
    for (name, buffer), (_, its) in zip(own.named_buffers(), other.named_buffers(), strict=True):
        assert torch.equal(buffer, its) and buffer.dtype is its.dtype, name
    modes = [{name: module.training for name, module in model.named_modules()} for model in (own, other)]
    assert modes[0] == modes[1] and not modes[1]["inner.layers.1"]
    inner: Any = other.get_submodule("inner")
    assert inner.again is inner.layers[0] and inner.layers[0].absent is None
    states: list[Any] = [own.state_dict(), other.state_dict()]
    assert states[0]._metadata == states[1]._metadata


def test_the_random_stream_goes_on_from_the_same_place(tmp_path: Path) -> None:
    task = stack(tmp_path, options="")
    settings = task.module.tinylayers.Settings(8, 2)
    skeleton = model_of(captured_case(task, CPU))
    seeded(lambda: task.module.Model(settings), 5)
    expected = torch.rand(4)
    seeded(lambda: skeleton(settings), 5)
    assert torch.equal(torch.rand(4), expected)


def test_tied_weights_stay_one_tensor(tmp_path: Path) -> None:
    task = task_of(tmp_path, "tinylayers.Tied(50, 8)", "torch.randint(0, 50, (2, 5))")
    model = seeded(model_of(captured_case(task, CPU)), 0)
    inner: Any = model.get_submodule("inner")
    assert inner.head.weight is inner.embed.weight and inner.narrow.dtype is torch.float16
    state = {key: torch.full_like(value, 2.0) for key, value in model.state_dict().items()}
    model.load_state_dict(state)
    assert bool((inner.embed.weight == 2).all()) and inner.head.weight is inner.embed.weight
    copied: Any = copy.deepcopy(model)
    assert copied.inner.head.weight is copied.inner.embed.weight
    again: Any = pickle.loads(pickle.dumps(model))
    assert again.inner.head.weight is again.inner.embed.weight
    assert model.to(torch.float64).get_parameter("inner.narrow").dtype is torch.float64


def test_other_arguments_than_the_recorded_ones_raise(tmp_path: Path) -> None:
    task = stack(tmp_path)
    skeleton, settings = model_of(captured_case(task, CPU)), task.module.tinylayers.Settings
    skeleton(settings=settings(8, 2))
    used = settings(8, 2)
    task.module.Model(used)
    skeleton(used)
    with pytest.raises(
        ValueError, match=r"holds the parameters of Model\(settings=Settings\(.*'depth': 2.*not those of"
    ):
        skeleton(settings(8, 3))
    with pytest.raises(TypeError, match="settings"):
        skeleton()


@pytest.mark.parametrize("how", ["numpy", "random"])
def test_draws_that_torch_does_not_see_keep_the_class_and_name_the_parameter(how: str, tmp_path: Path) -> None:
    graph = captured_case(task_of(tmp_path, f"tinylayers.Drawn({how!r})", "torch.randn(3, 4)"), CPU)
    assert graph.construction is None
    assert graph.kept_class.startswith("the values of inner.weight are not made by torch's calls alone")
    device = DEVICE
    source = (tmp_path / "job.py").read_text()
    text = lower([graph], seeds(graph, device)[0], task_source=source, device=device).source
    assert "import tinylayers" in text
    assert text.startswith(
        "# Foundry kernel, target cpu. Needs torch, g++ and tinylayers, because the values of inner."
    )


def test_a_large_table_from_outside_of_torch_keeps_the_class(tmp_path: Path) -> None:
    graph = captured_case(task_of(tmp_path, "tinylayers.Large()", "torch.randn(3, 4)"), CPU)
    assert "takes a tensor of 78 KB from outside of torch" in graph.kept_class


def test_a_state_that_is_loaded_in_a_way_of_its_own_keeps_the_class(tmp_path: Path) -> None:
    graph = captured_case(task_of(tmp_path, "tinylayers.Reversed()", "torch.randn(3, 4)"), CPU)
    assert graph.kept_class == "inner (Reversed) saves or loads its state in a way of its own"


def test_memory_to_which_nothing_was_written_need_not_be_equal(tmp_path: Path) -> None:
    graph = captured_case(task_of(tmp_path, "tinylayers.Unset()", "torch.randn(3, 4)"), CPU)
    assert seeded(model_of(graph), 0).get_parameter("inner.weight").shape == (4,)


def test_a_task_that_imports_torch_only_keeps_its_text(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n\n\n"
        "def get_inputs():\n    return [torch.randn(3)]\n"
    )
    graph = captured_case(loading.load(read_task(path)), CPU)
    assert graph.construction is None and not graph.kept_class


def test_a_constructor_that_cannot_be_watched_keeps_the_class(tmp_path: Path) -> None:
    made = "nn.Identity() if torch.utils._python_dispatch._get_current_dispatch_mode() is None else 1 / 0"
    graph = captured_case(task_of(tmp_path, made, "torch.randn(2, 8)"), CPU)
    assert (
        graph.kept_class
        == "recording its constructor failed: TaskError: job.py, line 11: building Model failed: "
        + ("ZeroDivisionError: division by zero")
    )
