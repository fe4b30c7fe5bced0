"""Constructors of many kinds, replayed: the examples, layers of torch, a model of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tools.task.construction.tiny_package import CPU, DEVICE, class_of, install, model_of, seeded, task_of

from foundry.knowledge.compiler.lower import lower, seeds
from foundry.tools.task import loading
from foundry.tools.task.construction.recorder import CannotReplay
from foundry.tools.task.file import read_task
from foundry.tools.task.intake import captured_case, constructed


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from install(tmp_path, monkeypatch)


EXAMPLES = sorted((Path(__file__).parents[4] / "examples").glob("*.py"))
SMALL = ("SCALE", "BATCH", "TOKENS", "ROWS", "SIZE", "CLASSES", "IN_FEATURES", "OUT_FEATURES")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_replay_equals_the_model_for_every_example(path: Path) -> None:
    task = read_task(path)
    constants = {name: 16 for name in SMALL if f"\n{name} = " in task.source}
    loaded = loading.load(task, overrides=constants)
    skeleton = class_of(constructed(loaded, CPU))
    given: list[Any] = getattr(loaded.module, "get_init_inputs", list)()
    for seed in (0, 1, 20):
        own, new = (seeded(lambda kind=kind: kind(*given), seed) for kind in (loaded.module.Model, skeleton))
        states = own.state_dict(), new.state_dict()
        assert list(states[0]) == list(states[1])
        assert all(torch.equal(one, two) for one, two in zip(*(state.values() for state in states), strict=True))


LAYERS = {
    "recurrent": "nn.LSTM(8, 8, num_layers=2)",
    "attention": "nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)",
    "weight norm": "nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))",
    "old weight norm": "nn.utils.weight_norm(nn.Linear(8, 8))",
    "spectral norm": "nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))",
    "orthogonal": "nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))",
    "list": "nn.ParameterList([torch.rand(8), torch.rand(8)])",
    "frozen": "nn.Linear(8, 8).requires_grad_(False)",
    "half": "nn.Linear(8, 8).half()",
    "channels": "nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)",
    "sparse start": "nn.init.sparse_(nn.Linear(8, 8).weight, 0.5) is None or nn.Linear(8, 8)",
    "views": "nn.ParameterList(torch.rand(2, 8).unbind(0))",
    "shared memory": "(lambda one: nn.ParameterList([one, one[2:], one.view(2, 4).t()]))(torch.rand(8))",
}


@pytest.mark.parametrize("made", LAYERS.values(), ids=LAYERS)
def test_a_replay_equals_the_model_for_layers_of_torch(made: str, tmp_path: Path) -> None:
    task = task_of(tmp_path, made, "torch.randn(2, 8)")
    skeleton = class_of(constructed(task, CPU))
    for seed in (0, 20):
        own, new = (seeded(kind, seed) for kind in (task.module.Model, skeleton))
        assert list(own.state_dict()) == list(new.state_dict())
        for one, two in zip(own.state_dict().values(), new.state_dict().values(), strict=True):
            assert torch.equal(one, two) and one.stride() == two.stride() and one.dtype is two.dtype
        storages = [[item.untyped_storage().data_ptr() for item in model.parameters()] for model in (own, new)]
        assert len(set(storages[0])) == len(set(storages[1]))
        grads = [[item.requires_grad for item in model.parameters()] for model in (own, new)]
        assert grads[0] == grads[1]
        new.load_state_dict(own.state_dict())


def test_generators_of_ones_own_keep_the_class(tmp_path: Path) -> None:
    made = "nn.ParameterList([torch.rand(4, generator=torch.Generator().manual_seed(3))])"
    with pytest.raises(CannotReplay, match="gives torch a Generator, which a file cannot hold"):
        constructed(task_of(tmp_path, made, "torch.randn(2, 8)"), CPU)
    made = "(torch.manual_seed(5), nn.Linear(8, 8))[1]"
    with pytest.raises(CannotReplay, match=r"the values of inner.weight are not made by torch's calls alone"):
        constructed(task_of(tmp_path, made, "torch.randn(2, 8)"), CPU)


LLAMA = """
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        config = LlamaConfig(
            hidden_size=width, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
            vocab_size=64, tie_word_embeddings=True,
        )
        self.model = AutoModelForCausalLM.from_config(config)

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


def get_inputs():
    return [torch.randint(0, 64, (2, 8))]


def get_init_inputs():
    return [32]
"""


def test_a_model_of_transformers_needs_torch_only(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="a package to try with: pip install transformers")
    path = tmp_path / "llama.py"
    path.write_text(LLAMA)
    task = loading.load(read_task(path))
    graph = captured_case(task, CPU)
    skeleton = model_of(graph)
    for seed in (0, 1, 20):
        own, new = (seeded(lambda kind=kind: kind(32), seed) for kind in (task.module.Model, skeleton))
        assert own.state_dict().keys() == new.state_dict().keys()
        for one, two in zip(own.state_dict().values(), new.state_dict().values(), strict=True):
            assert torch.equal(one, two)
    inner: Any = new.get_submodule("model")
    assert inner.lm_head.weight is inner.model.embed_tokens.weight
    text = lower([graph], seeds(graph, DEVICE)[0], task_source=task.task.source, device=DEVICE).source
    assert "transformers" not in text
