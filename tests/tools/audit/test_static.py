"""The gates against cheats that were seen in the field, and against honest kernels that must pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.tools.audit.test_symbols import KERNEL, compiled

from foundry.knowledge.candidate import Build, Gate, Recipe
from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.library.file.assemble import Entry
from foundry.knowledge.library.file.texts import read_library_text
from foundry.knowledge.library.ir.kernels import TorchCall
from foundry.knowledge.library.plan import plan
from foundry.knowledge.library.printers import module_file, print_kernel
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Policy
from foundry.tools.audit import audit, provenance_gates, static_gates
from foundry.tools.audit.acts.conduct import conduct_gates
from foundry.tools.audit.acts.kernels import kernel_gate, own_kernels
from foundry.tools.audit.text.native_rules import runtime_headers
from foundry.tools.audit.text.source import Finding, foundry_binding, read_source
from foundry.tools.grade.judge import judge
from foundry.tools.grade.runner.record import record_ops
from foundry.tools.selftest.faults import on_graph
from foundry.tools.task.capture import capture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import load
from foundry.tools.verify import receipt

TASK = """\
import torch
import torch.nn as nn

ROWS = 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.weight = nn.Parameter(torch.randn(32))

    def forward(self, x):
        return torch.softmax(self.linear(x), -1) * self.weight


def get_inputs():
    return [torch.randn(ROWS, 32)]
"""
EXAMPLES = Path(__file__).parents[3] / "examples"
DEVICE = Device("cpu", "test", "x86-64-v3", 2, 1 << 25, 32, 1 << 34)
MODEL = TASK.split("def get_inputs")[0]


def foundry_binding_text() -> list[str]:
    """Foundry's binding as candidates carry it, statement by statement."""
    template = read_library_text("cpu/module.py.txt")
    return template.split("\n\n\n")


HONEST = (
    MODEL
    + f'''
import ctypes

FOUNDRY = {{"target": "cpu", "compiler": "g++", "flags": ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"],
           "entry": "foundry_forward", "shapes": [[64, 32]], "labels": ["rewrite:none"]}}
SOURCE = r"""{KERNEL}"""
_LIBRARY = ctypes.CDLL(_library_path())


class ModelNew(Model):
    def forward(self, x):
        if x.shape != (64, 32) or x.dtype is not torch.float32:
            raise ValueError(f"compiled for 64 x 32 float32, got {{tuple(x.shape)}}")
        versions = (self.weight.data_ptr(), self.weight._version)
        held = self.__dict__.get("_prepared")
        if held is None or held[0] != versions:
            held = (versions, torch.empty(32))
            _LIBRARY.foundry_prepare(ctypes.c_void_p(self.weight.data_ptr()), ctypes.c_void_p(held[1].data_ptr()))
            self.__dict__["_prepared"] = held
        x = x.contiguous()
        out = torch.empty_like(x)
        status = _LIBRARY.foundry_forward((ctypes.c_void_p * 3)(x.data_ptr(), held[1].data_ptr(), out.data_ptr()))
        if status != 0:
            raise RuntimeError(f"the kernel failed with {{status}}")
        return out
'''
)

LOAD_INLINE = """\
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = '''
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void scale_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
torch::Tensor scale(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda());
    auto y = torch::empty_like(x);
    scale_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
'''
scale_module = load_inline(name="scale", cpp_sources="torch::Tensor scale(torch::Tensor x);",
                           cuda_sources=cuda_source, functions=["scale"], extra_cuda_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32))
        self.scale = scale_module

    def forward(self, x):
        return self.scale.scale(x.contiguous())
"""


TRITON = """\
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 1024})], key=["n"])
@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, x * 0.5 * (1.0 + tl.erf(x * 0.70710678)), mask=offsets < n)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda and x.is_contiguous()
        batch, width = x.shape
        x = x.view(-1)
        y = torch.empty_like(x)
        n = x.numel()
        vectorised = x.data_ptr() % 16 == 0 and width % 4 == 0
        if vectorised:
            grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
            gelu_kernel[grid](x, y, n)
        else:
            gelu_kernel[(triton.cdiv(n, 64),)](x, y, n)
        return y.view(batch, width)
"""

BOUND_CUDA = LOAD_INLINE.replace(
    "#include <cuda_runtime.h>",
    """#include "ATen/cuda/CUDAContext.h"
#include <c10/cuda/CUDAGuard.h>
static int multiprocessors = 0;
static inline int blocks(int n) { if (multiprocessors == 0) multiprocessors = 132; return (n + 255) / 256; }""",
).replace(
    "    TORCH_CHECK(x.is_cuda());",
    """    TORCH_CHECK(x.is_cuda() && x.dtype() == torch::kFloat32);
    const at::cuda::OptionalCUDAGuard guard(device_of(x));
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    if (blocks(3) < 0) printf("CUDA error: %s", cudaGetErrorString(cudaGetLastError()));""",
)


BINDING = next(text for text in foundry_binding_text() if text.startswith("def _library_path"))


def forward(body: str, *, top: str = "", init: str = "") -> str:
    """A candidate whose forward has the given body (one statement a line)."""
    constructor = f"    def __init__(self):\n        super().__init__()\n        {init}\n\n" if init else ""
    lines = "\n".join(f"        {line}" for line in body.split("\n"))
    return f"{MODEL}\n{top}\n\nclass ModelNew(Model):\n{constructor}    def forward(self, x):\n{lines}\n"


def native(source: str) -> str:
    return HONEST.replace(KERNEL, source)


def failures(text: str, policy: Policy = "fair") -> dict[str, str]:
    gates = static_gates(text, policy, task_source=TASK)
    return {gate.gate: gate.evidence for gate in gates if not gate.passed}


@pytest.mark.parametrize("policy", ["fair", "open", "strict"])
@pytest.mark.parametrize(
    "text", [HONEST, LOAD_INLINE, BOUND_CUDA, TRITON], ids=["ctypes", "load_inline", "bound", "triton"]
)
def test_honest_kernels_pass(text: str, policy: Policy) -> None:
    assert failures(text, policy) == {}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["pointwise_chain", "layernorm_gelu", "gemm_bias_relu"])
def test_library_candidates_pass_even_strict(name: str, target: TargetName) -> None:
    task = read_task(EXAMPLES / f"{name}.py")
    loaded = load(task, overrides={"ROWS": 32} if name != "layernorm_gelu" else {"TOKENS": 32})
    graph = capture(loaded.build_model(0), loaded.inputs(0))
    device = replace(DEVICE, target=target, arch="sm_90" if target == "cuda" else "x86-64-v3")
    steps = plan(graph, Recipe(target))
    kernels = [print_kernel(step, steps, device, {}) for step in steps.steps if not isinstance(step, TorchCall)]
    text = module_file(task.source, [Entry(steps, tuple(kernels))], device)
    gates = static_gates(text, "strict", task_source=task.source)
    assert [gate for gate in gates if not gate.passed] == []


def test_what_the_task_itself_does_is_not_held_against_the_candidate() -> None:
    task = TASK + "\nimport random\nrandom.seed(3)\ntorch.set_num_threads(2)\n"
    text = HONEST.replace(MODEL, task.split("def get_inputs")[0] + "import random\nrandom.seed(3)\n")
    assert not [gate for gate in static_gates(text, "fair", task_source=task) if not gate.passed]
    assert [gate for gate in static_gates(text, "fair", task_source=TASK) if not gate.passed]


CHEATS = {
    "operator": ("torch_compute", forward("return torch.softmax(x, -1)")),
    "alias": ("torch_compute", forward("return soft(x, -1)", top="from torch import softmax as soft")),
    "aten": ("torch_compute", forward("return torch.ops.aten.softmax.int(x, -1)")),
    "literal getattr": ("torch_compute", forward("return getattr(torch, 'softmax')(x, -1)")),
    "renamed at module level": ("torch_compute", forward("return work(x, -1)", top="work = torch.softmax")),
    "method": ("torch_compute", forward("y = x\nreturn y.softmax(-1)")),
    "infix operator": ("torch_compute", forward("return x @ self.linear.weight")),
    "arithmetic in a helper": ("torch_compute", forward("return helper(x)", top="def helper(v):\n    return v * 2")),
    "operator module": ("torch_compute", forward("return operator.matmul(x, x)", top="import operator")),
    "augmented": ("torch_compute", forward("y = torch.empty_like(x)\ny += x\nreturn y")),
    "closure": (
        "result_cache",
        forward("return work(x)", top="def make():\n    memo = {}\n    def work(v):\n        memo[0] = v\n"
                "        return memo[0]\n    return work\nwork = make()"),
    ),
    "mark on the input": ("result_cache", forward("x.seen = True\nreturn x")),
    "function attribute": ("result_cache", forward("helper.memo[0] = x\nreturn x", top="def helper():\n    pass")),
    "global statement": ("result_cache", forward("global LAST\nLAST = x\nreturn x", top="LAST = None")),
    "object setattr": ("introspection", forward("object.__setattr__(self, 'y', x)\nreturn x")),
    "lambda": ("torch_compute", forward("return helper(x)", top="helper = lambda v: v * 2")),
    "nested function": ("torch_compute", forward("def inner(v):\n    return v @ v\nreturn inner(x)")),
    "handed on": ("torch_compute", forward("return list(map(helper, [x]))[0]", top="def helper(v):\n    return -v")),
    "binding redefined": ("global_state", forward("return x", top="def _library_path():\n    return '/tmp/other.so'")
                          + f"\n{BINDING}"),
    "computed getattr": ("dynamic_code", forward("return getattr(torch, 'soft' + 'max')(x, -1)")),
    "exec payload": ("dynamic_code", forward("exec(PAYLOAD)\nreturn x", top="PAYLOAD = 'x = 1'")),
    "encoded payload": ("dynamic_code", forward("return x", top="import base64\nDATA = base64.b64decode('eA==')")),
    "torch.compile": ("dynamic_code", forward("return F(x)", top="F = torch.compile(torch.relu)")),
    "super forward": ("reference", forward("return super().forward(x)")),
    "reference by class": ("reference", forward("return Model.forward(self, x)")),
    "submodule": ("reference", forward("return self.linear(x)")),
    "submodule by alias": ("reference", forward("layer = self.linear\nreturn layer(x)")),
    "own layer": ("reference", forward("return self.norm(x)", init="self.norm = nn.LayerNorm(32)")),
    "renamed layer": ("reference", forward("return x", top="class Fast(nn.LayerNorm):\n    pass")),
    "no forward": ("reference", f"{MODEL}\nclass ModelNew(Model):\n    pass\n"),
    "cache by address": (
        "result_cache",
        forward("key = x.data_ptr()\nif key not in C:\n    C[key] = torch.empty(1)\nreturn C[key]", top="C = {}"),
    ),
    "cache on self": ("result_cache", forward("out = torch.empty_like(x)\nself.last = out\nreturn out")),
    "cached answer returned": ("result_cache", forward("return self.__dict__.get('answer')")),
    "mutable default": (
        "result_cache",
        f"{MODEL}\nclass ModelNew(Model):\n    def forward(self, x, kept=[]):\n        return x\n",
    ),
    "lru_cache": (
        "result_cache",
        forward("return helper(x)", top="import functools\n@functools.lru_cache\ndef helper(v):\n    return v"),
    ),
    "value shortcut": ("input_shortcut", forward("if x[0, 0] == 0:\n    return torch.zeros_like(x)\nreturn x")),
    "same pointer": ("input_shortcut", forward("if x.data_ptr() == self.seen:\n    return torch.empty(1)\nreturn x")),
    "call counter": ("phase_detection", forward("self.calls += 1\nreturn kernel(x, self.calls)")),
    "call counter by name": ("phase_detection", forward("self.calls += 1\nreturn kernel(x, getattr(self, 'calls'))")),
    "clock": ("phase_detection", forward("time.perf_counter()\nreturn x", top="import time")),
    "patched clock": ("global_state", forward("return x", top="import time\ntime.perf_counter = lambda: 0.0")),
    "patched allclose": ("global_state", forward("return x", top="torch.allclose = lambda *a, **k: True")),
    "patched through setattr": ("global_state", forward("return x", top="setattr(torch, 'allclose', None)")),
    "forward replaced later": ("global_state", forward("return x") + "\nModelNew.forward = torch.relu\n"),
    "threads of everyone": ("global_state", forward("torch.set_num_threads(1)\nreturn x")),
    "frames": ("introspection", forward("f = sys._getframe(1).f_locals\nreturn x", top="import sys")),
    "garbage collector": ("introspection", forward("gc.get_objects()\nreturn x", top="import gc")),
    "hook": ("hooks", forward("return x", init="self.register_forward_hook(print)")),
    "thread": ("threads", forward("threading.Thread(target=print).start()\nreturn x", top="import threading")),
    "side stream": ("threads", forward("s = torch.cuda.Stream()\nreturn x")),
    "file": ("files", forward("open('/tmp/answer').read()\nreturn x")),
    "environment": ("files", forward("return x", top="import os\nPHASE = os.environ.get('PHASE')")),
    "process": ("files", forward("subprocess.run(['ls'])\nreturn x", top="import subprocess")),
    "numpy": ("imports", forward("return torch.from_numpy(np.exp(x.numpy()))", top="import numpy as np")),
    "foreign library": ("imports", forward("return x", top="import ctypes\nB = ctypes.CDLL('libopenblas.so')")),
    "known seeds": ("precomputed", forward("return x", top="torch.manual_seed(42)\nX = torch.randn(64, 32)")),
    "answer table": ("precomputed", forward("return x", top="TABLE = [" + "0.5, " * 5000 + "]")),
    "lazy tensor": ("lazy_result", forward("return x", top="class Lazy(torch.Tensor):\n    pass")),
    "wrapped call": ("lazy_result", forward("return x") + "\n    def __call__(self, x):\n        return x\n"),
    "fallback": ("fallback", forward("try:\n    return kernel(x)\nexcept Exception:\n    return x")),
    "system call": ("native_system", native("#include <cstdlib>\nint f() { return system(\"ls\"); }\n")),
    "file in C++": ("native_system", native("#include <fstream>\nint f() { std::ifstream in(\"a\"); return 0; }\n")),
    "thread in C++": ("native_threads", native("#include <thread>\nvoid f() { std::thread t([]{}); t.detach(); }\n")),
    "memo in C++": (
        "native_state",
        native("static const void* last;\nint f(void** b) { if (b[0] == last) return 1; return 0; }\n"),
    ),
    "call counter in C++": ("native_state", native("static long calls = 0;\nint f() { return ++calls > 3; }\n")),
    "map in C++": (
        "native_state",
        native(
            "#include <unordered_map>\nnamespace {\nstd::unordered_map<const void*, float> memo;\n}\n"
            "float f(void** b) { auto found = memo.find(b[0]); return found->second; }\n"
        ),
    ),
    "plain global in C++": (
        "native_state",
        native("float last_sum;\nint f(float* x) { float s = x[0]; if (s == last_sum) return 1; return 0; }\n"),
    ),
    "static struct in C++": (
        "native_state",
        native("static struct { const void* x; float y[9]; } memo;\nint f(void** b) { return memo.x == b[0]; }\n"),
    ),
    "copied out in C++": (
        "native_state",
        native("float f(float* y) { static float kept[9];\n memcpy(y, kept, 36); return kept[0]; }\n"),
    ),
    "vendor": ("native_vendor", native("extern \"C\" void sgemm_(int*);\nvoid f() { sgemm_(nullptr); }\n")),
    "pasted name": ("native_hidden", native("#define GLUE(a, b) a##b\nvoid GLUE(sge, mm_)(int*);\n")),
    "file included": ("native_hidden", native("#include \"/etc/passwd\"\nint f() { return 0; }\n")),
    "incbin": ("native_hidden", native("asm(\".incbin \\\"/tmp/answer\\\"\");\nint f() { return 0; }\n")),
    "compiler plugin": ("build_flags", HONEST.replace('"-O3"', '"-fplugin=evil.so"')),
    "linked library": ("build_flags", HONEST.replace('"-O3"', '"-lopenblas"')),
    "broken file": ("readable", "def f(:\n"),
    "no ModelNew": ("readable", MODEL),
    "relative import": ("imports", forward("return x", top="from . import secrets")),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_vetoed_with_the_line(name: str) -> None:
    gate, text = CHEATS[name]
    found = failures(text)
    assert gate in found, f"not caught; failing gates: {found}"
    if gate != "readable" and name != "no forward":
        assert "line " in found[gate]


def test_strict_refuses_relaxed_maths_that_fair_only_labels() -> None:
    text = HONEST.replace('"-O3"', '"-O3", "-ffast-math"')
    assert failures(text) == {}
    assert "relaxed-maths" in audit(text, Build(True, 0.1), [], None, "fair", task_source=TASK).labels
    assert "-ffast-math" in failures(text, "strict")["maths"]


def test_f_strings_are_read_as_one_text() -> None:
    """What follows a value that is put in is not outside the function that it is in."""
    code = "def horner(v):\n    return v\n\n\nCODE = f'''#include <cmath>\nstatic float f(float x) {{\n"
    code += "  float r = x * {horner(2)};\n  r = r + {horner(3)};\n  return r;\n}}\n'''\n"
    assert "native_state" not in failures(HONEST + code)
    counting = code.replace("static float f", "static int calls;\nstatic float f")
    counting = counting.replace("  return r", "  ++calls;\n  return r")
    assert "native_state" in failures(HONEST + counting)


def test_a_default_argument_that_can_hold_nothing_is_no_cache() -> None:
    frozen = "@dataclasses.dataclass(frozen=True)\nclass Config:\n    block: int = 4\n"
    text = forward("return self.launch(x)", top="import dataclasses\n\n\n" + frozen)
    method = "\n    def launch(self, x, config=Config(), kept=EMPTY):\n        return torch.empty_like(x)\n"
    assert "result_cache" not in failures(text + method.replace("EMPTY", "()"))
    assert "result_cache" in failures(text + method.replace("EMPTY", "{}"))
    assert "result_cache" in failures(text.replace("(frozen=True)", "") + method.replace("EMPTY", "()"))


def test_open_labels_what_fair_rejects() -> None:
    text = forward("return self.linear(x)")
    assert "reference" in failures(text)
    assert "reference" not in failures(text, "open")
    assert "reference-layers" in audit(text, Build(True, 0.1), [], None, "open", task_source=TASK).labels


# ---------------------------------------------------------------- provenance


class Reference(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1)


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return capture(Reference(), [torch.randn(128, 64)])


def judged(run: object, graph: OpGraph | None, policy: Policy = "fair") -> Gate:
    assert callable(run)
    (gate,) = provenance_gates(record_ops(run), graph, policy)
    return gate


def test_the_library_doing_the_heavy_operator_is_seen_whatever_its_name(graph: OpGraph) -> None:
    model, x = Reference(), torch.randn(128, 64)
    gate = judged(lambda: torch.empty(3) if model(x) is None else None, graph)
    assert not gate.passed
    assert "addmm" in gate.evidence
    hidden = getattr(torch, "".join(["m", "m"]))
    assert not judged(lambda: hidden(x, model.linear.weight), graph).passed
    assert judged(lambda: hidden(x, model.linear.weight), graph, "open").passed


def test_allocation_views_and_copies_are_free(graph: OpGraph) -> None:
    x = torch.randn(128, 64)
    gate = judged(lambda: torch.empty_like(x).copy_(x.t().contiguous().t()).view(-1).reshape(64, -1), graph)
    assert gate.passed
    assert "computed nothing" in gate.evidence


def test_a_negligible_operator_passes_and_an_uncaptured_graph_allows_none(graph: OpGraph) -> None:
    counter = torch.zeros((), dtype=torch.int64)
    assert judged(lambda: counter + 1, graph).passed
    assert not judged(lambda: counter + 1, None).passed


def test_rows_carry_flops_and_bytes() -> None:
    a, b = torch.randn(8, 16), torch.randn(16, 4)
    (row,) = record_ops(lambda: [torch.mm(a, b) for _ in range(2)])
    assert row == {"op": "aten.mm.default", "calls": 2, "flops": 2 * 2 * 8 * 16 * 4, "bytes": 2 * 4 * (128 + 64 + 32)}


def test_the_whole_audit(tmp_path: Path, graph: OpGraph) -> None:
    build = Build(True, 0.1, artifact=str(compiled(tmp_path, KERNEL)))
    clean = audit(HONEST, build, [], graph, "fair", task_source=TASK, declared=("rewrite:fold",))
    assert clean.clean
    assert {"rewrite:fold", "rewrite:none", "prepared-weights", "shape-specialised"} <= set(clean.labels)
    x = torch.randn(128, 64)
    small = forward("return torch.relu(x)")
    log = record_ops(lambda: torch.relu(x[:1, :1]))
    weighed = audit(small, build, log, graph, "fair", task_source=TASK)
    assert weighed.clean
    assert "torch:aten.relu.default" in weighed.labels
    heavy = audit(small, build, record_ops(lambda: torch.relu(x)), graph, "fair", task_source=TASK)
    assert not heavy.clean
    assert not audit(small, build, None, graph, "fair", task_source=TASK).clean


# ---------------------------------------------------------------- judged by what they do, not by whose they are


def test_a_binding_of_another_version_needs_no_trust() -> None:
    task = read_task(EXAMPLES / "gemm_bias_relu.py")
    loaded = load(task, overrides={"ROWS": 32})
    steps = plan(capture(loaded.build_model(0), loaded.inputs(0)), Recipe("cpu"))
    kernels = [print_kernel(step, steps, DEVICE, {}) for step in steps.steps if not isinstance(step, TorchCall)]
    text = module_file(task.source, [Entry(steps, tuple(kernels))], DEVICE)
    older = (
        text.replace("leaves", "arguments").replace("asked", "answer").replace("held", "kept").replace("partial", "new")
    )
    assert older != text
    watched = [Gate("mapped code", True, "")]
    for policy in ("fair", "open"):
        found = audit(older, Build(True, 0.1), [], None, policy, task_source=task.source, watched=watched)
        assert [gate for gate in found.gates if not gate.passed] == []


HONEST_FORWARDS = {
    "a view that may fail": "try:\n    y = x.view(x.numel(), 1)\nexcept RuntimeError:\n    y = None\nreturn x",
    "batches that nobody counts": "if self.training:\n    self.linear.num_batches_tracked += 1\nreturn x",
    "a switch of its own for a trace": "if os.environ.get('GEMM_TRACE'):\n    print('traced')\nreturn x",
    "a layer beside an input": "x, own = x.contiguous(), self.linear\nif own.training:\n    print('train')\nreturn x",
    "a copy between tensors": (
        "w = self.linear.weight\ny = torch.empty_like(w)\n"
        "ctypes.memmove(y.data_ptr(), w.data_ptr(), w.nbytes)\nreturn x"
    ),
}


@pytest.mark.parametrize("name", HONEST_FORWARDS)
def test_honest_bindings_are_not_held_against_a_candidate(name: str) -> None:
    assert failures(forward(HONEST_FORWARDS[name], top="import ctypes, os")) == {}


def test_memory_by_a_number_is_not_the_candidates_own() -> None:
    text = forward("ctypes.memmove(id(x) + 16, x.data_ptr(), 8)\nreturn x", top="import ctypes")
    assert "introspection" in failures(text)


def test_policies_name_what_they_refuse() -> None:
    graph = HONEST.replace("out = torch.empty_like(x)", "out = torch.empty_like(x)  # torch.cuda.CUDAGraph")
    for policy, refused in (("open", set()), ("fair", set()), ("strict", {"graphs", "shape locks"})):
        found = audit(graph, Build(True, 0.1), [], None, policy, task_source=TASK)  # type: ignore[arg-type]
        assert {gate.gate for gate in found.gates if not gate.passed} == refused
        assert {"cuda-graph", "shape-specialised", "prepared-weights"} <= set(found.labels)
    assert not audit(HONEST, Build(True, 0.1), [], None, "strict", task_source=TASK, accuracy="tf32").clean
    compiled_by_torch = forward("return F(x)", top="F = torch.compile(torch.relu)")
    found = audit(compiled_by_torch, Build(True, 0.1), None, None, "open", task_source=TASK)
    assert found.clean
    assert "other-compiler" in found.labels
    approximate = HONEST.replace('"rewrite:none"', '"approximation:exp"')
    assert not audit(approximate, Build(True, 0.1), [], None, "fair", task_source=TASK).clean
    assert audit(approximate, Build(True, 0.1), [], None, "open", task_source=TASK).clean


def test_whose_kernels_ran_on_the_device() -> None:
    source = read_source(LOAD_INLINE)
    assert not isinstance(source, Finding)
    assert own_kernels(source) == {"scale_kernel"}
    rows = [["void scale_kernel<4>(float const*, float*, int)", 95.0], ["Memcpy DtoD (Device -> Device)", 50.0]]
    assert kernel_gate(rows, {"scale_kernel"}).passed
    for own in ("void (anonymous namespace)::scale_kernel<float>(float const*)", "mine::scale_kernel(float*)"):
        assert kernel_gate([[own, 9.0]], {"scale_kernel"}).passed
    foreign = "void at::native::(anonymous namespace)::scale_kernel<float>(native::scale_kernel, float*)"
    assert not kernel_gate([[foreign, 9.0]], {"scale_kernel", "native"}).passed
    gate = kernel_gate([*rows, ["sm90_xmma_gemm_f32f32", 300.0]], {"scale_kernel"})
    assert not gate.passed
    assert "sm90_xmma_gemm" in gate.evidence


def test_the_library_s_templates_and_headers_are_known_to_the_audit() -> None:
    """Found by a listing: an empty one would take the library's own kernels their trust without a word."""
    assert len(foundry_binding()) > 20
    assert len(runtime_headers()) >= 3 and len(runtime_headers(".py.txt")) == 2


def test_files_of_the_grader_are_guarded_wherever_they_lie() -> None:
    """A candidate that opens a file of the package's tools is told so, whichever folder it lies in."""
    for module in (judge, receipt, on_graph):
        seen = {"events": [("import", "open", f"{module.__file__} r", 1)]}
        gates = conduct_gates(seen, "fair", on_cpu=True)
        assert any("a file of the grader" in gate.evidence for gate in gates if not gate.passed), module.__file__
