"""A compiled kernel as a module: gradients, tracers, copies, conversions, changed weights, threads."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.authored import PACKED
from tests.knowledge.compiler.test_module_file import DEVICE, imported
from torch import nn

from foundry.knowledge.candidate import AuthoredKernel, Recipe
from foundry.knowledge.compiler.lower import lower
from foundry.tools.task.capture import capture

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(48, 160)
        self.down = nn.Linear(160, 48)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def get_inputs():
    return [torch.randn(96, 48)]


def get_init_inputs():
    return []
"""
BEST = "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x.argmax(1)\n"
ONE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(12, 20))

    def forward(self, x):
        return x @ self.weight.t()
"""
TURNED = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.randn(50, 4))

    def forward(self, x, positions):
        turn = self.angles[positions].unsqueeze(1)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * turn.cos() - odd * turn.sin(), even * turn.sin() + odd * turn.cos()), -1).flatten(-2)
"""
X = torch.randn(96, 48, generator=torch.Generator().manual_seed(1))


def candidate(
    task: str, inputs: list[torch.Tensor], authored: AuthoredKernel | None = None, falls_back: bool = False
) -> str:
    """The library's first candidate of a task's text."""
    names: dict[str, Any] = {}
    exec(task, names)
    recipe = Recipe("cpu", authored=authored)
    graph = replace(capture(names["Model"](), inputs), falls_back=falls_back)
    return lower([graph], recipe, task_source=task, device=DEVICE).source


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Two layers whose weights are laid out once, compiled."""
    folder = tmp_path_factory.mktemp("kernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_BUILD_CACHE", str(folder))
        text = candidate(TASK, [X])
        assert "_Prepared(" in text
        yield imported(text, folder)


def truth(module: nn.Module, *given: torch.Tensor) -> torch.Tensor:
    """The outputs of the task's own forward with a module's parameters."""
    with torch.no_grad():
        found: torch.Tensor = type(module).__mro__[1].forward(module, *(given or (X,)))  # type: ignore[attr-defined]
    return found


def is_right(module: nn.Module, x: torch.Tensor = X) -> bool:
    with torch.no_grad():
        return torch.allclose(module(x), truth(module, x), atol=1e-4)


# ---------------------------------------------------------------- gradients


def test_outputs_that_would_need_gradients_are_refused_in_one_line(kernel: ModuleType) -> None:
    model = kernel.ModelNew()
    with pytest.raises(
        RuntimeError, match=r"^up.weight requires grad, .* torch.no_grad\(\) .* requires_grad_\(False\)"
    ):
        model(X)
    with torch.inference_mode():
        assert torch.allclose(model(X), truth(model), atol=1e-4)
    assert is_right(model)
    model.requires_grad_(False)
    assert torch.allclose(model(X), truth(model), atol=1e-4)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="dual_level"):
        model(torch.autograd.forward_ad.make_dual(X, X))  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match=r"^input 0 requires grad"):
        model(X.clone().requires_grad_())


def test_outputs_that_have_no_gradients_are_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path))
    model = imported(candidate(BEST, [X]), tmp_path).ModelNew()
    assert torch.equal(model(X.clone().requires_grad_()), X.argmax(1))


# ---------------------------------------------------------------- tracers


def test_torch_compile_ends_its_graph_once_around_a_kernel(
    kernel: ModuleType, recwarn: pytest.WarningsRecorder
) -> None:
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    inner = kernel.ModelNew()

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.inner(x * 2.0)
            return found + 1.0

    with torch.no_grad():
        for model, wanted in ((inner, truth(inner)), (Around(), truth(inner, X * 2) + 1)):
            reset()
            counters.clear()
            compiled = torch.compile(model, backend="eager")
            for _ in range(3):
                assert torch.allclose(compiled(X), wanted, atol=1e-4)
            assert len(counters["graph_break"]) == 1 and not counters["unimplemented"]
            assert counters["stats"].get("unique_graphs", 0) == (0 if model is inner else 2)
    assert not [item for item in recwarn if "deprecated" not in str(item.message)]


def test_torch_export_is_refused_and_leaves_the_module_as_it_was(kernel: ModuleType) -> None:
    model = kernel.ModelNew()
    with torch.no_grad(), pytest.raises(RuntimeError, match="export the task's Model"):
        torch.export.export(model, (X,), strict=False)
    assert is_right(model)
    with (
        torch._subclasses.FakeTensorMode() as mode,
        pytest.raises(ValueError, match="a FakeTensor, which has no memory"),
    ):
        model.requires_grad_(False)(mode.from_tensor(X))
    assert is_right(model)
    with torch.no_grad(), pytest.raises(RuntimeError, match="trace the task's Model"):
        torch.jit.trace(model, (X,))  # type: ignore[no-untyped-call]


TRANSFORMED = """
x = torch.randn(96, 48)
model = ModelNew().requires_grad_(False)
for transform in (lambda: torch.func.jvp(model, (x,), (x,)), lambda: torch.func.vmap(model)(x.expand(2, 96, 48))):
    try:
        transform()
        print("looked into")
    except RuntimeError:
        print(torch.allclose(model(x), Model.forward(model, x), atol=1e-4))
"""


def test_a_transform_is_refused_and_leaves_nothing_behind(
    kernel: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call of a process makes the memory that later calls work in."""
    done = run_alone(kernel, TRANSFORMED, tmp_path, monkeypatch)
    assert done == "True\nTrue\n"


def run_alone(kernel: ModuleType, script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The output of a script after the kernel's text, in a separate process with the same builds."""
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(Path(kernel._library_path()).parent))
    path = folder / "alone.py"
    path.write_text(Path(str(kernel.__file__)).read_text() + script)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True).stdout


class Marked(torch.Tensor):
    """A subclass with memory of its own, as libraries of images have."""


def test_an_instance_of_a_subclass_that_has_memory_is_taken(kernel: ModuleType) -> None:
    model = kernel.ModelNew().requires_grad_(False)
    found = model(X.as_subclass(Marked))
    assert type(found) is torch.Tensor and torch.equal(found, model(X))


# ---------------------------------------------------------------- copies and conversions


def test_copies_and_pickles_hold_parameters_and_nothing_else(kernel: ModuleType) -> None:
    model = kernel.ModelNew()
    assert is_right(model)
    with torch.no_grad():
        copied = copy.deepcopy(model)
        copied.up.weight.mul_(2)
    assert is_right(copied) and is_right(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert buffer.tell() < sum(item.nbytes for item in model.parameters()) + 10_000
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert is_right(loaded) and torch.equal(loaded.up.weight, model.up.weight)
    assert list(model.state_dict()) == ["up.weight", "up.bias", "down.weight", "down.bias"]


def test_a_replica_reads_its_own_parameters(kernel: ModuleType) -> None:
    """As torch.nn.DataParallel makes them: the same dictionary of attributes, other parameters."""
    model = kernel.ModelNew()
    assert is_right(model)
    replica = model._replicate_for_data_parallel()
    other = kernel.ModelNew()
    replica._modules = other._modules
    with torch.no_grad():
        assert torch.allclose(replica(X), truth(other), atol=1e-4)
    assert is_right(model)


@pytest.mark.parametrize("convert", ["half", "double", "bfloat16"])
def test_another_type_is_refused_in_one_line_until_it_is_float_again(convert: str, kernel: ModuleType) -> None:
    model = kernel.ModelNew()
    assert is_right(model)
    getattr(model, convert)()
    with torch.no_grad(), pytest.raises(ValueError, match=r"up.weight: compiled for a cpu tensor of .* torch.float32"):
        model(X)
    model.float()
    assert is_right(model)
    model.to(memory_format=torch.channels_last)
    assert is_right(model)
    with torch.no_grad(), pytest.raises(ValueError, match=r"got .* on meta"):
        model.to("meta")(X)


def test_weights_made_in_inference_mode_work_and_are_followed(kernel: ModuleType) -> None:
    with torch.inference_mode():
        model = kernel.ModelNew()
        with pytest.warns(UserWarning, match="construct the module outside"):
            assert torch.allclose(model(X), truth(model), atol=1e-4)
        model.load_state_dict({key: 2 * value for key, value in model.state_dict().items()})
        with pytest.warns(UserWarning):
            assert torch.allclose(model(X), truth(model), atol=1e-4)
    with pytest.warns(UserWarning):
        assert is_right(model)


# ---------------------------------------------------------------- weights that change


def from_memory(memory: bytearray, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor in this memory, with a storage of its own: what an allocator gives that hands out memory again."""
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


def put_parameter(module: nn.Module, tensor: torch.Tensor) -> None:
    module.weight = nn.Parameter(tensor)


def put_data(module: nn.Module, tensor: torch.Tensor) -> None:
    module.weight.data = tensor


@pytest.mark.parametrize("put", [put_parameter, put_data])
@pytest.mark.parametrize("written", ["library", "author"])
def test_storage_that_is_replaced_at_the_same_address_is_seen(
    put: Callable[[nn.Module, torch.Tensor], None],
    written: str,
    kernel: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path))
    if written == "library":
        model, x = kernel.ModelNew(), X
        changed = model.up
    else:
        x = torch.randn(6, 20)
        text = candidate(ONE, [x], PACKED)
        model = changed = imported(text, tmp_path).ModelNew()
    shape = tuple(changed.weight.shape)
    memory = bytearray(4 * changed.weight.numel())
    put(changed, from_memory(memory, shape))
    first = changed.weight.data_ptr(), changed.weight._version
    with torch.no_grad():
        assert torch.allclose(model(x), truth(model, x), atol=1e-4)
        put(changed, torch.zeros(shape))  # the memory is free
        from_memory(memory, shape).fill_(0.5)
        put(changed, from_memory(memory, shape))  # and is taken again
        assert (changed.weight.data_ptr(), changed.weight._version) == first
        assert torch.allclose(model(x), truth(model, x), atol=1e-4)


def test_a_weight_in_other_strides_is_followed(kernel: ModuleType) -> None:
    """The weight is copied in each call; a change is looked for in the weight, not in the copy."""
    model = kernel.ModelNew()
    with torch.no_grad():
        model.up.weight = nn.Parameter(model.up.weight.t().contiguous().t())
        for _ in range(3):
            assert is_right(model)
            model.up.weight.mul_(1.5)


def test_a_submodule_that_is_replaced_or_computes_its_weight_is_seen(kernel: ModuleType) -> None:
    model = kernel.ModelNew()
    assert is_right(model)
    model.up = nn.Linear(48, 160)
    assert is_right(model)
    nn.utils.parametrizations.weight_norm(model.down)
    assert is_right(model)
    with torch.no_grad():
        model.down.parametrizations.weight.original0.mul_(3)
    assert is_right(model)
    plain = kernel.ModelNew()
    given = {key: 0.5 * value for key, value in plain.state_dict().items()}
    with torch.no_grad():
        assert torch.allclose(torch.func.functional_call(plain, given, (X,)), _called(kernel, given), atol=1e-4)
    assert is_right(plain)


def _called(kernel: ModuleType, state: dict[str, torch.Tensor]) -> torch.Tensor:
    model = kernel.ModelNew()
    model.load_state_dict(state)
    return truth(model)


# ---------------------------------------------------------------- the task's own forward for all else


def test_the_tasks_forward_runs_for_what_the_kernels_were_not_compiled_for(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path))
        model = imported(candidate(TASK, [X], falls_back=True), tmp_path).ModelNew()
    wide = torch.randn(5, 48)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_right(model)
    with (
        pytest.warns(UserWarning, match=r"the task's own forward runs: input 0: compiled for .*\(96, 48\)"),
        torch.no_grad(),
    ):
        assert torch.equal(model(wide), truth(model, wide))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        model(wide)  # said once
    with pytest.warns(UserWarning, match="the task's own forward runs: up.weight requires grad"):
        model(X).sum().backward()
    assert model.up.weight.grad is not None and is_right(model)
    with pytest.raises(TypeError):
        model(X, X)


# ---------------------------------------------------------------- threads

COUNTED = """
import os
x = torch.randn(96, 48)
count = lambda: len(os.listdir("/proc/self/task"))
model = ModelNew().requires_grad_(False)
torch.set_num_threads(1)
before = count()
model(x)
alone = count() - before
torch.set_num_threads(2)
model(x)
print(alone, count() - before)
"""


def test_a_team_has_as_many_threads_as_pytorch_says_at_the_call(
    kernel: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text has two threads; one that PyTorch does not grant would wait for a core."""
    assert "THREADS = 2" in Path(str(kernel.__file__)).read_text()
    assert run_alone(kernel, COUNTED, tmp_path, monkeypatch) == "0 1\n"


def test_a_call_in_another_thread_takes_pytorchs_number(kernel: ModuleType) -> None:
    model, found = kernel.ModelNew(), []
    thread = threading.Thread(target=lambda: found.append(is_right(model)))
    thread.start()
    thread.join()
    assert found == [True]


# ---------------------------------------------------------------- inputs that repeat elements in memory


def test_an_expanded_input_may_be_any_other_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for a stride of 0 cannot take other positions, and no copy of those could have that stride."""
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path))
    x, positions = torch.randn(2, 3, 20, 8), torch.arange(20).expand(2, 20)
    model = imported(candidate(TURNED, [x, positions]), tmp_path).ModelNew()
    drawn = torch.randint(0, 50, (2, 20))
    for given in (positions, drawn, drawn.t().contiguous().t(), positions.contiguous(), drawn[:1].expand(2, 20)):
        wanted = truth(model, x, given)
        torch.testing.assert_close(model(x, given), wanted, rtol=1e-5, atol=1e-5)
