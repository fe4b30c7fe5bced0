"""Vetoes and leads from the text of a file, and how the gates are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.knowledge.compiler.lowering import as_module
from tests.tools.audit.test_symbols import KERNEL, compiled

from foundry.knowledge.candidate import Audit, Build, Gate, Recipe
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import TorchCall
from foundry.knowledge.compiler.plan import plan
from foundry.knowledge.compiler.printers import module_file, print_kernel
from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.knowledge.task import OtherShapes, Policy
from foundry.tools.audit import audit, needs_watching, provenance_gates
from foundry.tools.audit.acts.conduct import conduct_gates
from foundry.tools.audit.acts.kernels import kernel_gate, own_kernels, stream_gate
from foundry.tools.audit.acts.observed import Launch, Observations
from foundry.tools.audit.text.definitions import definition_gates
from foundry.tools.audit.text.forbidden import Suspicion
from foundry.tools.audit.text.leads import leads_of
from foundry.tools.audit.text.native import runtime_headers
from foundry.tools.audit.text.source import CandidateSource, foundry_binding, read_source
from foundry.tools.grade.judge import judge
from foundry.tools.grade.runner.record import record_ops
from foundry.tools.protocol.orders import FEWER_ROWS
from foundry.tools.protocol.orders import LEADS as LEADS_GATE
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
BUILT = Build(True, 0.1)


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


def forward(body: str, *, top: str = "", init: str = "") -> str:
    """A candidate whose forward has the given body (one statement a line)."""
    constructor = f"    def __init__(self):\n        super().__init__()\n        {init}\n\n" if init else ""
    lines = "\n".join(f"        {line}" for line in body.split("\n"))
    return f"{MODEL}\n{top}\n\nclass ModelNew(Model):\n{constructor}    def forward(self, x):\n{lines}\n"


def native(source: str) -> str:
    return HONEST.replace(KERNEL, source)


def failures(text: str, policy: Policy = "fair") -> dict[str, str]:
    """The definitions that a file breaks."""
    gates = definition_gates(read_source(text, TASK), policy)
    return {gate.gate: gate.evidence for gate in gates if not gate.passed}


def suspicions(text: str, task: str = TASK) -> set[Suspicion]:
    source = read_source(text, task)
    assert isinstance(source, CandidateSource)
    return {lead.suspicion for lead in leads_of(source)}


@pytest.mark.parametrize("policy", ["fair", "open", "strict"])
@pytest.mark.parametrize(
    "text", [HONEST, LOAD_INLINE, BOUND_CUDA, TRITON], ids=["ctypes", "load_inline", "bound", "triton"]
)
def test_honest_kernels_pass(text: str, policy: Policy) -> None:
    assert failures(text, policy) == {}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["pointwise_chain", "layernorm_gelu", "gemm_bias_relu"])
def test_library_candidates_pass_even_strict_and_give_no_lead(name: str, target: TargetName) -> None:
    task = read_task(EXAMPLES / f"{name}.py")
    loaded = load(task, overrides={"ROWS": 32} if name != "layernorm_gelu" else {"TOKENS": 32})
    graph = capture(loaded.build_model(0), loaded.inputs(0))
    device = replace(DEVICE, target=target, arch="sm_90" if target == "cuda" else "x86-64-v3")
    steps = plan(graph, Recipe(target))
    kernels = [print_kernel(step, steps, device, {}) for step in steps.steps if not isinstance(step, TorchCall)]
    text = module_file(task.source, [Entry(steps, tuple(kernels))], device)
    source = read_source(text, task.source)
    assert [gate for gate in definition_gates(source, "strict") if not gate.passed] == []
    assert isinstance(source, CandidateSource) and leads_of(source) == []
    assert not needs_watching(text, task_source=task.source)


def test_what_the_task_itself_does_is_not_held_against_the_candidate() -> None:
    task = TASK + "\nimport random\nrandom.seed(3)\n"
    text = HONEST.replace(MODEL, task.split("def get_inputs")[0] + "import random\nrandom.seed(3)\n")
    assert suspicions(text, TASK) - suspicions(text, task) == {Suspicion.PRECOMPUTED}


BROKEN = {
    "compiler plugin": ("build_flags", HONEST.replace('"-O3"', '"-fplugin=evil.so"')),
    "linked library": ("build_flags", HONEST.replace('"-O3"', '"-lopenblas"')),
    "another compiler": ("build_flags", HONEST.replace('"compiler": "g++"', '"compiler": "tcc"')),
    "broken file": ("readable", "def f(:\n"),
    "no ModelNew": ("readable", MODEL),
    "two of them": ("readable", HONEST + "\n\nclass ModelNew(Model):\n    pass\n"),
    "the clock of the CUDA runtime": (
        "native names",
        native('extern "C" int cudaEventElapsedTime(float* ms, void*, void*) { *ms = 0; return 0; }\n'),
    ),
    "a name of the linked runtime": ("native names", native("void libcudart_static_0053c1d3() {}\n")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_definitions_veto(name: str) -> None:
    gate, text = BROKEN[name]
    assert gate in failures(text)
    assert gate == "readable" or "line " in failures(text)[gate]


def test_a_function_named_like_the_runtime_is_not_the_runtimes() -> None:
    assert failures(native("static void cudaCheck(int code) { if (code) abort(); }\n")) == {}


LEADS = {
    "alias": (Suspicion.OTHERS_WORK, forward("return soft(x, -1)", top="from torch import softmax as soft")),
    "infix operator": (Suspicion.OTHERS_WORK, forward("return x @ self.linear.weight")),
    "computed getattr": (Suspicion.DYNAMIC, forward("return getattr(torch, 'soft' + 'max')(x, -1)")),
    "exec payload": (Suspicion.DYNAMIC, forward("exec(PAYLOAD)\nreturn x", top="PAYLOAD = 'x = 1'")),
    "torch.compile": (Suspicion.DYNAMIC, forward("return F(x)", top="F = torch.compile(torch.relu)")),
    "super forward": (Suspicion.OTHERS_WORK, forward("return super().forward(x)")),
    "submodule": (Suspicion.OTHERS_WORK, forward("return self.linear(x)")),
    "no forward": (Suspicion.OTHERS_WORK, f"{MODEL}\nclass ModelNew(nn.Linear):\n    pass\n"),
    "cache on self": (Suspicion.KEPT, forward("out = torch.empty_like(x)\nself.last = out\nreturn out")),
    "global statement": (Suspicion.KEPT, forward("global LAST\nLAST = x\nreturn x", top="LAST = None")),
    "same pointer": (Suspicion.SHORTCUT, forward("if x.data_ptr() == self.seen:\n    return 1\nreturn x")),
    "clock": (Suspicion.CLOCK, forward("time.perf_counter()\nreturn x", top="import time")),
    "patched clock": (Suspicion.STATE, forward("return x", top="import time\ntime.perf_counter = lambda: 0.0")),
    "forward replaced later": (Suspicion.STATE, forward("return x") + "\nModelNew.forward = torch.relu\n"),
    "frames": (Suspicion.INTROSPECTION, forward("f = sys._getframe(1).f_locals\nreturn x", top="import sys")),
    "hook": (Suspicion.HOOKS, forward("return x", init="self.register_forward_hook(print)")),
    "side stream": (Suspicion.THREADS, forward("s = torch.cuda.Stream()\nreturn x")),
    "file": (Suspicion.FILES, forward("open('/tmp/answer').read()\nreturn x")),
    "numpy": (Suspicion.OTHERS_WORK, forward("return torch.from_numpy(2 * x.numpy())")),
    "known seeds": (Suspicion.PRECOMPUTED, forward("return x", top="torch.manual_seed(42)")),
    "answer table": (Suspicion.PRECOMPUTED, forward("return x", top="TABLE = [" + "0.5, " * 5000 + "]")),
    "lazy tensor": (Suspicion.LAZY, forward("return x", top="class Lazy(torch.Tensor):\n    pass")),
    "wrapped call": (Suspicion.LAZY, forward("return x") + "\n    def __call__(self, x):\n        return x\n"),
    "fallback": (Suspicion.FALLBACK, forward("try:\n    return kernel(x)\nexcept Exception:\n    return x")),
    "relative import": (Suspicion.OTHERS_WORK, forward("return x", top="from . import secrets")),
    "system call": (Suspicion.SYSTEM, native("int f() { return system(0); }\n")),
    "system call in bytes": (
        Suspicion.SYSTEM,
        native("int f() { return system(0); }\n").replace('SOURCE = r"""', 'SOURCE = rb"""'),
    ),
    "thread in C++": (Suspicion.THREADS, native("void f() { std::thread t([]{}); t.detach(); }\n")),
    "memo in C++": (Suspicion.KEPT, native("static const void* last;\nint f(void** b) { return b[0] == last; }\n")),
    "vendor": (Suspicion.OTHERS_WORK, native("extern \"C\" void sgemm_(int*);\nvoid f() { sgemm_(nullptr); }\n")),
    "pasted name": (Suspicion.HIDDEN, native("#define GLUE(a, b) a##b\nvoid GLUE(sge, mm_)(int*);\n")),
}  # fmt: skip


@pytest.mark.parametrize("name", LEADS)
def test_a_lead_asks_for_runs_and_vetoes_nothing(name: str) -> None:
    suspicion, text = LEADS[name]
    assert suspicion in suspicions(text) and needs_watching(text, task_source=TASK)
    assert failures(text) == {}
    followed = [Gate("mapped code", True, "")]
    gates = {gate.gate: gate for gate in audit(text, BUILT, [], None, "fair", task_source=TASK, watched=followed).gates}
    assert gates[LEADS_GATE].passed and "line " in gates[LEADS_GATE].evidence
    assert not audit(text, BUILT, [], None, "fair", task_source=TASK).clean  # no process followed it


def test_strict_refuses_relaxed_maths_that_fair_only_labels() -> None:
    text = HONEST.replace('"-O3"', '"-O3", "-ffast-math"')
    assert failures(text) == {}
    assert "relaxed-maths" in audit(text, Build(True, 0.1), [], None, "fair", task_source=TASK).labels
    assert "-ffast-math" in failures(text, "strict")["maths"]


def test_open_labels_what_fair_rejects() -> None:
    linked = HONEST.replace('"-O3"', '"-lopenblas"')
    assert "build_flags" in failures(linked) and failures(linked, "open") == {}
    assert "vendor-library" in audit(linked, BUILT, [], None, "open", task_source=TASK).labels
    others = forward("return x", top="import numpy as np\nF = torch.compile(torch.relu)")
    assert {"other-compiler", "other-library"} <= set(audit(others, BUILT, [], None, "open", task_source=TASK).labels)


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


class Spectrum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log1p(torch.sort(torch.tanh(x) * torch.sigmoid(x), dim=-1).values.abs()) * 2


SORTING: dict[str, tuple[Callable[[torch.Tensor], object], bool]] = {
    "the sort alone": (torch.sort, True),
    "the sort and a little": (lambda x: (torch.sort(x), x[:1] + 1), True),
    "the rest as well": (lambda x: torch.log1p(torch.sort(torch.tanh(x)).values), False),
    "more sorts than the task has": (lambda x: [torch.sort(x) for _ in range(3)], False),
    "another foreign operator": (torch.fft.rfft, False),
}


@pytest.mark.parametrize("name", SORTING)
def test_only_foreign_operators_of_the_task_are_excused(name: str) -> None:
    run, passes = SORTING[name]
    x = torch.randn(128, 64)
    graph, log = capture(Spectrum(), [x]), record_ops(lambda: run(x))
    slow = Gate("provenance (time)", False, "", (Reason(ReasonKind.TORCH_OPERATOR, "sort"),))
    for policy, expected in (("fair", passes), ("strict", False)):
        watched = [Gate("mapped code", True, ""), slow]
        small = forward("return torch.relu(x)")
        found = audit(small, Build(True, 0.1), log, graph, policy, task_source=TASK, watched=watched)  # type: ignore[arg-type]
        failed = {gate.gate for gate in found.gates if not gate.passed}
        assert (failed == set()) is expected, failed
        assert ("foreign:sort" in found.labels) is passes
        assert passes or {"provenance", "provenance (time)"} <= failed
        assert policy == "fair" or not passes or "foreign operators" in failed


def test_a_task_that_only_sorts_has_no_work_of_its_own_to_do() -> None:
    x = torch.randn(128, 64)
    graph = capture(as_module(lambda x: torch.sort(x).values), [x])
    assert not judged(lambda: torch.sort(x), graph).passed


def test_rows_carry_flops_and_bytes() -> None:
    a, b = torch.randn(8, 16), torch.randn(16, 4)
    (row,) = record_ops(lambda: [torch.mm(a, b) for _ in range(2)])
    assert row == {"op": "aten.mm.default", "calls": 2, "flops": 2 * 2 * 8 * 16 * 4, "bytes": 2 * 4 * (128 + 64 + 32)}


def test_the_whole_audit(tmp_path: Path, graph: OpGraph) -> None:
    build = Build(True, 0.1, artifact=str(compiled(tmp_path, KERNEL)))
    followed = [Gate("mapped code", True, "")]
    clean = audit(HONEST, build, [], graph, "fair", task_source=TASK, declared=("rewrite:fold",), watched=followed)
    assert clean.clean
    assert {"rewrite:fold", "rewrite:none", "prepared-weights", "shape-specialised"} <= set(clean.labels)
    x = torch.randn(128, 64)
    small = forward("return torch.relu(x)")
    log = record_ops(lambda: torch.relu(x[:1, :1]))
    weighed = audit(small, build, log, graph, "fair", task_source=TASK, watched=followed)
    assert weighed.clean
    assert "torch:aten.relu.default" in weighed.labels
    heavy = audit(small, build, record_ops(lambda: torch.relu(x)), graph, "fair", task_source=TASK, watched=followed)
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


def test_policies_name_what_they_refuse() -> None:
    graph = HONEST.replace("out = torch.empty_like(x)", "out = torch.empty_like(x)  # torch.cuda.CUDAGraph")
    for policy, refused in (("open", set()), ("fair", set()), ("strict", {"graphs", "shape locks"})):
        found = audit(graph, Build(True, 0.1), [], None, policy, task_source=TASK)  # type: ignore[arg-type]
        assert {gate.gate for gate in found.gates if not gate.passed} == refused
        assert {"cuda-graph", "shape-specialised", "prepared-weights"} <= set(found.labels)
    assert not audit(HONEST, Build(True, 0.1), [], None, "strict", task_source=TASK, accuracy="tf32").clean
    for policy, refused in (("fair", set()), ("strict", {"shape locks", "algebra"})):
        declared = ["algebra:sum-before-product"]
        found = audit(HONEST, Build(True, 0.1), [], None, policy, task_source=TASK, declared=declared)  # type: ignore[arg-type]
        assert {gate.gate for gate in found.gates if not gate.passed} == refused
        assert "algebra:sum-before-product" in found.labels
    compiled_by_torch = forward("return F(x)", top="F = torch.compile(torch.relu)")
    followed = [Gate("mapped code", True, "")]
    found = audit(compiled_by_torch, BUILT, None, None, "open", task_source=TASK, watched=followed)
    assert found.clean
    assert "other-compiler" in found.labels
    approximate = HONEST.replace('"rewrite:none"', '"approximation:exp"')
    assert not audit(approximate, Build(True, 0.1), [], None, "fair", task_source=TASK).clean
    assert audit(approximate, Build(True, 0.1), [], None, "open", task_source=TASK).clean


def test_whose_kernels_ran_on_the_device() -> None:
    source = read_source(LOAD_INLINE)
    assert isinstance(source, CandidateSource)
    assert own_kernels(source) == {"scale_kernel"}
    rows: list[Launch] = [
        ("void scale_kernel<4>(float const*, float*, int)", 95.0, 1, 32),
        ("Memcpy DtoD (Device -> Device)", 50.0, 0, 0),
    ]
    assert kernel_gate(rows, {"scale_kernel"}).passed
    for own in ("void (anonymous namespace)::scale_kernel<float>(float const*)", "mine::scale_kernel(float*)"):
        assert kernel_gate([(own, 9.0, 1, 32)], {"scale_kernel"}).passed
    foreign = "void at::native::(anonymous namespace)::scale_kernel<float>(native::scale_kernel, float*)"
    assert not kernel_gate([(foreign, 9.0, 1, 32)], {"scale_kernel", "native"}).passed
    gate = kernel_gate([*rows, ("sm90_xmma_gemm_f32f32", 300.0, 1, 32)], {"scale_kernel"})
    assert not gate.passed
    assert "sm90_xmma_gemm" in gate.evidence


def test_the_library_s_templates_and_headers_are_known_to_the_audit() -> None:
    """Found by a listing: an empty one would take the library's own kernels their trust without a word."""
    assert len(foundry_binding()) > 20
    assert len(runtime_headers()) >= 3 and len(runtime_headers(".py.txt")) == 7


def test_files_of_the_grader_are_guarded_wherever_they_lie() -> None:
    """A candidate that opens a file of the package's tools is told so, whichever folder it lies in."""
    for module in (judge, receipt, on_graph):
        seen: Observations = {"events": [("import", "open", f"{module.__file__} r", 1)]}
        gates = conduct_gates(seen, "fair", on_cpu=True)
        assert any("a file of the grader" in gate.evidence for gate in gates if not gate.passed), module.__file__


def test_an_output_that_the_callers_stream_did_not_wait_for_convicts() -> None:
    gate = stream_gate({"changed": [1], "held": True})
    assert not gate.passed and "output 1 was written after what the caller's stream did next" in gate.evidence
    assert not stream_gate({"changed": [0], "held": False}).passed, "other bytes are a fact, whoever held the device"
    assert stream_gate({"changed": [], "held": True}).passed
    assert "proves little" in stream_gate({"changed": [], "held": False}).evidence


def test_other_shapes_may_be_left_to_the_tasks_own_forward_where_the_task_says_so() -> None:
    left = Gate(FEWER_ROWS, False, "on fewer rows PyTorch computes what the kernel should")

    def audited(policy: Policy, other_shapes: OtherShapes) -> Audit:
        followed = [Gate("mapped code", True, ""), left]
        return audit(HONEST, BUILT, [], None, policy, task_source=TASK, watched=followed, other_shapes=other_shapes)

    assert FEWER_ROWS in {gate.gate for gate in audited("fair", "raise").gates if not gate.passed}
    allowed = audited("fair", "reference")
    assert FEWER_ROWS not in {gate.gate for gate in allowed.gates if not gate.passed}
    assert "reference-elsewhere" in allowed.labels
    assert "other shapes" in {gate.gate for gate in audited("strict", "reference").gates if not gate.passed}
