"""What a compiled CUDA kernel does as a module, on the emulator: gradients, weights and inputs elsewhere in memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.cuda.test_module import H200, run
from tests.knowledge.compiler.test_in_place import TASK as CACHE
from tests.knowledge.compiler.test_module_calls import TURNED

from foundry.knowledge.candidate import AuthoredKernel, AuthoredLaunch, AuthoredScratch, Recipe
from foundry.knowledge.compiler.lower import lower
from foundry.tools.task.capture import capture

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")

LINEAR = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(12, 20))

    def forward(self, x):
        return x @ self.weight.t()
"""
CODE = """extern "C" __global__ void turn(const float* weight, float* turned) {
  for (int i = threadIdx.x; i < p_weight_n; i += 32)
    turned[i % p_weight_d1 * p_weight_d0 + i / p_weight_d1] = weight[i];
}
extern "C" __global__ void product(const float* x, const float* turned, float* out) {
  for (int o = threadIdx.x; o < out_n; o += 32) {
    float sum = 0;
    for (int i = 0; i < x_d1; ++i) sum += x[o / out_d1 * x_d1 + i] * turned[i * out_d1 + o % out_d1];
    out[o] = sum;
  }
}
"""
PACKED = AuthoredKernel(
    CODE,
    (
        AuthoredLaunch("turn", ("p_weight", "turned"), ("1",), ("32",), once=True),
        AuthoredLaunch("product", ("x", "turned", "out"), ("1",), ("32",)),
    ),
    scratch=(AuthoredScratch("turned", "p_weight_n", kept=True),),
)
SCRIPT = """
memory, x = bytearray(12 * 20 * 4), torch.randn(6, 20)
taken = lambda: torch.frombuffer(memory, dtype=torch.float32).view(12, 20)
model, right, marks = ModelNew(), [], []
check = lambda: right.append(bool(torch.allclose(model(x), x @ model.weight.t(), atol=1e-4)))
refused = ""
try:
    with torch.enable_grad():
        model(x)
except RuntimeError as error:
    refused = str(error)
check()
for put in (lambda t: setattr(model, "weight", torch.nn.Parameter(t)), lambda t: setattr(model.weight, "data", t)):
    for value in (0.5, 0.25):
        put(torch.zeros(12, 20))
        taken().fill_(value)
        put(taken())
        marks.append((model.weight.data_ptr(), model.weight._version))
        check()
model.weight.mul_(2)
check()
print(json.dumps({"right": right, "refused": refused, "same": marks[0] == marks[1] and marks[2] == marks[3]}))
"""


def test_gradients_are_refused_and_replaced_storage_is_seen(forks: Forks, tmp_path: Path) -> None:
    names: dict[str, type[torch.nn.Module]] = {}
    exec(LINEAR, names)
    graph = capture(names["Model"](), [torch.randn(6, 20)])
    text = lower([graph], Recipe("cuda", authored=PACKED), task_source=LINEAR, device=H200).source
    answer = run(forks, text, SCRIPT, tmp_path, tmp_path / "cache")
    assert answer["refused"].startswith("weight requires grad") and answer["same"]
    assert answer["right"] == [True] * 6


EXPANDED = """
saved = torch.load("FOLDER/saved.pt")
model, worst = ModelNew(), 0.0
for given in (saved["positions"], saved["drawn"], saved["drawn"].t().contiguous().t()):
    worst = max(worst, float((model(saved["x"], given) - Model.forward(model, saved["x"], given)).abs().max()))
shifted = torch.arange(21)[1:].expand(2, 20)  # begins at no multiple of 16 bytes
worst = max(worst, float((model(saved["x"], shifted) - Model.forward(model, saved["x"], shifted)).abs().max()))
print(json.dumps({"worst": worst}))
"""


def test_an_expanded_input_may_be_any_other_input(forks: Forks, tmp_path: Path) -> None:
    names: dict[str, type[torch.nn.Module]] = {}
    exec(TURNED, names)
    x, positions = torch.randn(2, 3, 20, 8), torch.arange(20).expand(2, 20)
    graph = capture(names["Model"](), [x, positions])
    text = lower([graph], Recipe("cuda"), task_source=TURNED, device=H200).source
    torch.save({"x": x, "positions": positions, "drawn": torch.randint(0, 50, (2, 20))}, tmp_path / "saved.pt")
    answer = run(forks, text, EXPANDED.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache")
    assert answer["worst"] < 1e-5


CACHED = """
saved, worst, kept = torch.load("FOLDER/saved.pt"), 0.0, []
kernel, reference = ModelNew(), Model()
reference.load_state_dict(kernel.state_dict())
places = [buffer.data_ptr() for buffer in kernel.buffers()]
for position in saved["positions"]:
    pairs = [*zip(kernel(saved["x"], position), Model.forward(reference, saved["x"], position))]
    pairs += zip(kernel.buffers(), reference.buffers())
    worst = max(worst, *(float((one.float() - other.float()).abs().max()) for one, other in pairs))
same = places == [buffer.data_ptr() for buffer in kernel.buffers()]
print(json.dumps({"worst": worst, "same": same}))
"""


def test_a_step_of_a_cache_writes_into_the_buffers(forks: Forks, tmp_path: Path) -> None:
    names: dict[str, type[torch.nn.Module]] = {}
    exec(CACHE, names)
    x, positions = torch.randn(2, 3, 8), [torch.tensor([5, 60, 5]), torch.tensor([0, 1, 2])]
    graph = capture(names["Model"](), [x, positions[0]])
    text = lower([graph], Recipe("cuda"), task_source=CACHE, device=H200).source
    assert text.count("_note_change(parameters") == 3
    torch.save({"x": x, "positions": positions}, tmp_path / "saved.pt")
    answer = run(forks, text, CACHED.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache")
    assert answer["worst"] < 2e-2 and answer["same"]  # marks are sums of bfloat16
