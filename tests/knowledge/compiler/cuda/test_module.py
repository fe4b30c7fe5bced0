"""Whole CUDA candidates without a GPU: the driver's interface is a stand-in whose launches run on the emulator.

What is proven is everything between `ModelNew.forward` and the kernels: the cache key, the launch table, slots, scratch
memory, PyTorch calls in between, dispatch on shapes. Only the GPU itself is missing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.emulator import emulator
from tests.forking import Forks
from tests.knowledge.compiler import authored

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.cuda.launches import Launch, encode
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Buffer,
    Const,
    Emit,
    Kernel,
    Load,
    MapKernel,
    Named,
    OutputView,
    Plan,
    PrintedKernel,
    Reduction,
    RowKernel,
    Store,
    TorchCall,
    View,
)
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.compiler.printers import module_file, print_kernel
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import Arrangement, DType, Ref
from foundry.tools.targets.base import read_literals
from foundry.tools.targets.cuda.build import CudaTarget
from foundry.tools.task.capture import capture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import load

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)
F: DType = "float32"
pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.arange(size, dtype=torch.float32))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return torch.softmax(torch.flip(x * self.scale + 0.5, [1]), 1), self.scale


def get_inputs():
    return [torch.randn(3, 40)]


def get_init_inputs():
    return [40]
"""

DRIVER = """
struct Config { unsigned gx, gy, gz, bx, by, bz, shared; void* stream; void* attributes; unsigned count; };
static const char* kNames[] = {@NAMES@};
static const unsigned kStatic[] = {@STATIC@};  // bytes of shared memory, as ptxas counts them
static unsigned kAllowed[sizeof(kNames) / sizeof(*kNames)];
extern "C" int cuModuleLoadData(void** module, const void* image) { *module = (void*)image; return image ? 0 : 1; }
extern "C" int cuModuleGetFunction(void** function, void*, const char* name) {
    for (size_t i = 0; i < sizeof(kNames) / sizeof(*kNames); ++i)
        if (!strcmp(kNames[i], name)) return *function = (void*)(i + 1), 0;
    return 500;
}
extern "C" int cuFuncSetAttribute(void* function, int attribute, int bytes) {
    const size_t i = (size_t)function - 1;
    if (attribute != 8 || kStatic[i] + bytes > 227 * 1024) return 1;
    return kAllowed[i] = bytes, 0;
}
extern "C" int cuTensorMapEncodeTiled(bulk::Map* map, int kind, unsigned rank, void* base, const uint64_t* sizes,
                                     const uint64_t* strides, const unsigned* box, const unsigned* steps, int,
                                     int swizzle, int, int) {
    if (rank < 3 || rank > 4 || swizzle != 3 || (size_t)base % 16 || (size_t)map % 64) return 1;
    *map = {(const char*)base};
    for (unsigned d = 0; d < rank; ++d) {
        if (d && strides[d - 1] % 16 || box[d] > 256 || steps[d] != 1) return 1;
        map->sizes[d] = sizes[d], map->box[d] = box[d];
        map->strides[d] = d ? strides[d - 1] : kind == 7 ? 4 : kind ? 2 : 1;
    }
    return 0;
}
extern "C" int cuGetErrorString(int, const char** text) { *text = "stand-in error"; return 0; }
extern "C" int cuLaunchKernelEx(const Config* c, void* function, void** params, void**) {
    if (c->stream != (void*)7 || !c->attributes != !c->count) return 1;
    struct Attribute { unsigned id, pad, size[3], rest[13]; };
    const Attribute* const together = (const Attribute*)c->attributes;
    if (c->count > 1 || (together && together->id != 4 && together->id != 2)) return 1;
    if (together && together->size[0] * together->size[1] * together->size[2] != together->size[0]) return 1;
    const int cluster = !together ? 1 : together->id == 4 ? (int)together->size[0] : 0;
    const size_t i = (size_t)function - 1;
    if (kStatic[i] + c->shared > 48 * 1024 && c->shared > kAllowed[i]) return 1;
    const dim3 grid(c->gx, c->gy, c->gz), block(c->bx, c->by, c->bz);
    switch ((size_t)function) {
@CASES@
    }
    return 400;
}
"""

LIBRARY = "libcuda.so.1"
CHILD = """
import ctypes, json, sys
import torch
from types import SimpleNamespace
torch.set_grad_enabled(False)
ctypes.CDLL(sys.argv[3])  # from now on it is what is meant by libcuda.so.1
torch.Tensor.is_cuda = True  # a CPU tensor stands for the GPU's
torch.cuda.current_device = torch.cuda.set_device = lambda *device: None
torch.cuda.get_device_capability = lambda device: (9, 0)
torch.cuda.current_stream = lambda: SimpleNamespace(cuda_stream=7)
text = sys.argv[1].replace("torch.device('cuda', torch.cuda.current_device())", "torch.device('cpu')")
namespace = {}
exec(compile(text, "candidate.py", "exec"), namespace)
exec(sys.argv[2], namespace)
"""


def kind_of(parameter: str) -> str:
    """As what the emulator takes a kernel's argument: every slot of a launch table has eight bytes."""
    if "bulk::Map" in parameter:
        return "bulk::Map"
    return "void*" if "*" in parameter else "long long"


def stand_in(text: str, folder: Path) -> None:
    """Builds libcuda.so.1 from the candidate's own source, with the launches it declares."""
    literals = read_literals(text)
    assert literals
    asked = literals.about["launches"]
    cases = []
    for number, name in enumerate(asked, 1):
        found = re.search(rf"\b{name}\(([^)]*)\)", literals.source)
        assert found, name
        kinds = [kind_of(parameter) for parameter in re.split(r",(?![^<]*>)", found[1])]
        values = [f"*({kind}*)params[{i}]" for i, kind in enumerate(kinds)]
        words = ", ".join(["cluster", "grid", "block", "c->shared", name, *values])
        cases.append(f"        case {number}: emulator::launch({words}); return 0;")
    kernels = CudaTarget(H200).build(text).resources.kernels
    static = [kernels[name]["shared_bytes"] - asked[name]["shared_bytes"] for name in asked]
    holes = {
        "NAMES": ", ".join(f'"{name}"' for name in asked),
        "STATIC": ", ".join(f"{size:.0f}" for size in static),
        "CASES": "\n".join(cases),
    }
    driver = re.sub(r"@([A-Z]+)@", lambda hole: holes[hole[1]], DRIVER)
    unit = folder / "driver.cpp"
    unit.write_text(f"{emulator.emulation_source(literals.source, [])[0]}\n{driver}")
    command = ["g++", *emulator.FLAGS, f"-I{emulator.header_folder()}", str(unit), "-o", str(folder / LIBRARY)]
    subprocess.run([*command, f"-Wl,-soname,{LIBRARY}"], check=True, capture_output=True)


def run(forks: Forks, text: str, script: str, folder: Path, cache: Path) -> Any:
    """Runs `script` (which prints one JSON document) beside the candidate in a child with the stand-in driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_BUILD_CACHE", str(cache))
        stand_in(text, folder)
    done = forks(CHILD, text, script, folder / LIBRARY, environment={"FOUNDRY_BUILD_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def softmax_plan(rows: int, columns: int) -> Plan:
    """scale, flip (through PyTorch), softmax: two kernels, a call in between, a constant, an output that is a view."""
    shape, strides = (rows, columns), (columns, 1)
    view = View(0, strides)
    scaled = Apply("mul", (Load("x", view, F), Load("scale", View(0, (0, 1)), F)), F)
    shifted = Apply("add", (scaled, Load("half", View(0, (0, 0)), F)), F)
    first = MapKernel("scaled", shape, (Store("t", view, shifted),))
    flipped = TorchCall("flip", "aten.flip.default", (Ref("t"), [1]), {}, ("f",))
    value = Load("f", view, F)
    copied = MapKernel("copied", shape, (Store("u", view, Apply("mul", (value, Const(1.0, F)), F)),))
    from_u = Load("u", view, F)
    exponential = Apply("exp", (Apply("sub", (from_u, Named("top", F)), F),), F)
    stages = (
        Reduction("top", "max", from_u, F),
        Reduction("total", "sum", exponential, F),
        Emit(Store("y", view, Apply("div", (exponential, Named("total", F)), F))),
    )
    softmax = RowKernel("softmax", (rows,), (columns,), stages)
    buffers = {
        "x": Buffer("x", shape, strides, F, "input", "0"),
        "scale": Buffer("scale", (columns,), (1,), F, "parameter", "scale"),
        "half": Buffer("half", (), (), F, "constant", "", (0.5,)),
        "t": Buffer("t", shape, strides, F, "temporary"),
        "f": Buffer("f", shape, strides, F, "temporary"),
        "u": Buffer("u", shape, strides, F, "temporary"),
        "y": Buffer("y", shape, strides, F, "output"),
    }
    outputs = (OutputView("y", shape, strides), OutputView("y", (columns, rows), (1, columns)))
    steps: tuple[Kernel | TorchCall, ...] = (first, flipped, copied, softmax)
    return Plan(buffers, steps, outputs, Arrangement.flat(len(outputs)), write_backs={"seen": "half"})


def candidate(*shapes: tuple[int, int], **choices: Choice) -> str:
    entries = []
    for rows, columns in shapes:
        plan = softmax_plan(rows, columns)
        kernels = [None if isinstance(s, TorchCall) else print_kernel(s, plan, H200, dict(choices)) for s in plan.steps]
        entries.append(Entry(plan, tuple(kernels)))
    return module_file(TASK, entries, H200)


SCRIPT = """
model = ModelNew(40)
torch.manual_seed(3)
worst, launches = 0.0, 0
for number, rows in enumerate(ROWS):
    x = torch.randn(rows, 40)
    x = x if number % 2 else torch.randn(40, rows).t()  # another layout than compiled for
    y, flat = model(x)
    truth = torch.softmax(torch.flip(x.double() * model.scale.double() + 0.5, [1]), 1)
    worst = max(worst, float((y.double() - truth).norm() / truth.norm()), float((flat.t() - y).abs().max()))
    model.scale.data = model.scale.data * 0.5  # parameters may move between calls
shared = torch.zeros(3 * 40 + 1)[1:].view(3, 40).normal_()  # not aligned to 16 bytes
y, _ = model(shared)
truth = torch.softmax(torch.flip(shared.double() * model.scale.double() + 0.5, [1]), 1)
worst = max(worst, float((y.double() - truth).norm()))
refused = ""
try:
    model(torch.randn(4, 41))
except ValueError as error:
    refused = str(error)
cubin = str(_cubin_path("sm_90"))
seen = float(model.seen)
names = sorted(model.state_dict())
print(json.dumps({"worst": worst, "refused": refused, "cubin": cubin, "names": names, "seen": seen}))
"""


@pytest.mark.parametrize("shapes", [((3, 9000),), ((3, 40), (5, 40))], ids=["rows of a cluster", "two shapes"])
def test_a_candidate_runs_through_the_driver(
    forks: Forks, shapes: tuple[tuple[int, int], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = shapes[0][1]
    cache = tmp_path / "cache"
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(cache))
    text = candidate(*shapes, cluster=2)
    assert (", 2)," in text) == (columns == 9000), "only a long row takes a cluster"
    build = CudaTarget(H200).build(text)
    assert build.ok, build.first_error
    assert build.resources.occupancy is not None and len(build.resources.kernels) == 3 * len(shapes)
    rows = [rows for rows, _ in shapes] * 3
    script = SCRIPT.replace("40", str(columns)).replace("41", str(columns + 1))
    answer = run(forks, text, script.replace("ROWS", repr(rows)), tmp_path, cache)
    assert isinstance(answer["worst"], float) and answer["worst"] < 1e-5
    assert answer["cubin"] == str(cache / build.artifact), "the candidate looks for another file than the target builds"
    assert "compiled for" in str(answer["refused"])
    assert answer["names"] == ["scale", "seen"]
    assert answer["seen"] == 0.5, "the new value of a buffer is written back"


def test_without_a_compiler_the_cached_build_is_used(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(cache))
    text = candidate((3, 40))
    assert CudaTarget(H200).build(text).ok
    script = (
        'globals()["_compiler"] = lambda: None\nprint(json.dumps({"size": len(_cubin_path("sm_90").read_bytes())}))'
    )
    answer = run(forks, text, script, tmp_path, cache)
    assert isinstance(answer["size"], int) and answer["size"] > 500


# Turns 15360 floats round, half of them through static and half through dynamic shared memory: 30 KB each.
BOTH_KINDS = """
extern "C" __global__ void foundry_turned(float* y, const float* x) {
    __shared__ float fixed[7680];
    extern __shared__ float staged[];
    for (int i = threadIdx.x; i < 7680; i += 256) fixed[i] = x[i], staged[i] = x[7680 + i];
    __syncthreads();
    for (int i = threadIdx.x; i < 7680; i += 256) y[i] = staged[7679 - i], y[7680 + i] = fixed[7679 - i];
}
"""


def with_both_kinds_of_shared_memory() -> str:
    """A candidate whose kernel has 30 KB of static and asks for 30 KB of dynamic shared memory."""
    size = (15360,)
    buffers = {"x": Buffer("x", size, (1,), F, "input", "0"), "y": Buffer("y", size, (1,), F, "output")}
    kernel = MapKernel("turned", size, (Store("y", View(15359, (-1,)), Load("x", View(0, (1,)), F)),))
    launch = Launch("foundry_turned", (1, 1, 1), (256, 1, 1), ("y", "x"), 30 * 1024)
    printed = PrintedKernel(BOTH_KINDS, encode([launch]), "map", {}, ())
    plan = Plan(buffers, (kernel,), (OutputView("y", size, (1,)),), Arrangement())
    return module_file(TASK, [Entry(plan, (printed,))], H200)


def test_static_shared_memory_counts_towards_what_needs_permission(forks: Forks, tmp_path: Path) -> None:
    script = "x = torch.randn(15360)\nprint(json.dumps({'same': bool((ModelNew(40)(x) == x.flip(0)).all())}))"
    assert run(forks, with_both_kinds_of_shared_memory(), script, tmp_path, tmp_path / "cache") == {"same": True}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
def test_static_and_dynamic_shared_memory_launch_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path))
    namespace: dict[str, Any] = {}
    exec(compile(with_both_kinds_of_shared_memory(), "candidate.py", "exec"), namespace)
    x = torch.randn(15360, device="cuda")
    assert torch.equal(namespace["ModelNew"](40)(x), x.flip(0))


EXAMPLES = {
    "attention": {"TOKENS": 48, "HEADS": 2},
    "conv2d_batchnorm_relu": {"BATCH": 2, "SIZE": 9, "CHANNELS": 5, "OUT_CHANNELS": 6},
    "cross_entropy": {"TOKENS": 12, "CLASSES": 700},
}
EXAMPLE_SCRIPT = """
saved = torch.load("FOLDER/saved.pt")
model = ModelNew(*saved["arguments"])
model.load_state_dict(saved["state"])
got = model(*saved["inputs"])
state = [float((value.double() - saved["after"][name]).abs().max()) for name, value in model.state_dict().items()]
error = float((got.double() - saved["truth"]).norm() / saved["truth"].norm())
print(json.dumps({"error": error, "state": max(state, default=0.0)}))
"""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_goes_all_the_way(forks: Forks, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture, plan, print, build, launch: the same graph that a GPU would run, at a small size."""
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    task = read_task(Path(__file__).parents[4] / "examples" / f"{name}.py")
    loaded = load(task, overrides=EXAMPLES[name])
    model, inputs = loaded.build_model(0), loaded.inputs(0)
    graph = capture(model, inputs, overrides=EXAMPLES[name])
    lowered = lower([graph], seeds(graph, H200)[0], task_source=task.source, device=H200)
    assert not [label for label in lowered.labels if label.startswith("torch:")], "PyTorch computes a part of it"
    assert CudaTarget(H200).build(lowered.source).ok
    arguments = loaded.module.get_init_inputs()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    wide = [item.double() if item.is_floating_point() else item for item in inputs]
    truth = model.double()(*wide).detach()
    saved = {"arguments": arguments, "state": state, "inputs": inputs, "truth": truth, "after": model.state_dict()}
    torch.save(saved, tmp_path / "saved.pt")
    answer = run(forks, lowered.source, EXAMPLE_SCRIPT.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache")
    assert isinstance(answer["error"], float) and answer["error"] < (6e-4 if "tf32" in lowered.labels else 1e-6)
    assert isinstance(answer["state"], float) and answer["state"] < 1e-5


class Softmax(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 1)


AUTHORED_SCRIPT = """
worst = 0.0
for rows in (5, 6):
    x = torch.randn(rows, 77)
    worst = max(worst, float((ModelNew(40)(x) - torch.softmax(x, 1)).abs().max()))
print(json.dumps({"worst": worst}))
"""


def test_an_authors_kernel_goes_all_the_way(forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shapes of one text, compiled in one go, with the compiler's report and the lines of its author."""
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    graphs = [capture(Softmax(), (torch.zeros(rows, 77),)) for rows in (5, 6)]
    recipe = Recipe("cuda", authored=authored.CUDA, choices={"authored": {"ROWS": 1}})
    text = lower(graphs, recipe, task_source=TASK, device=H200).source
    build = CudaTarget(H200).build(text)
    facts = build.resources.kernels["shape1_foundry_softmax"]
    assert build.ok and facts["registers"] > 0 and (facts["blocks"], facts["threads"]) == (6, 64)
    assert run(forks, text, AUTHORED_SCRIPT, tmp_path, tmp_path / "cache")["worst"] < 1e-6
    wrong = CudaTarget(H200).build(text.replace("float top = -FOUNDRY_INF, total = 0", "float top = -FOUNDRY_INF"))
    line = next(n for n, said in enumerate(authored.CUDA_CODE.splitlines(), 1) if "total +=" in said)
    assert wrong.first_error == f'author({line}): error: identifier "total" is undefined'


# Heads of 1024: neither a warp's registers nor a block's shared memory hold them.
WIDE_HEADS = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k, v, mask):
        masked = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return masked + torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def get_inputs():
    mask = torch.rand(12, 20) > 0.3
    mask[1] = False
    return [torch.randn(1, 2, 12, 1024), torch.randn(1, 2, 20, 1024), torch.randn(1, 2, 20, 1024), mask]


def get_init_inputs():
    return []
"""


def wide_heads(folder: Path) -> tuple[Lowered, list[torch.Tensor], torch.Tensor]:
    """The candidate, its inputs and the truth in float64, a row that is hidden whole among it."""
    (folder / "wide_heads.py").write_text(WIDE_HEADS)
    task = read_task(folder / "wide_heads.py")
    loaded = load(task, overrides={})
    model, inputs = loaded.build_model(0), loaded.inputs(0)
    graph = capture(model, inputs)
    recipe = replace(seeds(graph, H200)[0], ieee_only=True)
    lowered = lower([graph], recipe, task_source=task.source, device=H200)
    wide = [item.double() if item.is_floating_point() else item for item in inputs]
    return lowered, inputs, model(*wide)


def test_heads_that_are_too_large_are_products_and_a_softmax(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    lowered, inputs, truth = wide_heads(tmp_path)
    assert not [label for label in lowered.labels if label.startswith("torch:")], "PyTorch computes a part of it"
    assert sorted(kernel.template for kernel in lowered.kernels) == ["gemm"] * 4 + ["row"] * 2
    torch.save({"arguments": [], "state": {}, "inputs": inputs, "truth": truth, "after": {}}, tmp_path / "saved.pt")
    answer = run(forks, lowered.source, EXAMPLE_SCRIPT.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache")
    assert isinstance(answer["error"], float) and answer["error"] < 1e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
def test_heads_that_are_too_large_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth is PyTorch's on the same GPU: a row that is hidden whole gives zeros there too."""
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    lowered, inputs, truth = wide_heads(tmp_path)
    namespace: dict[str, Any] = {}
    exec(compile(lowered.source, "candidate.py", "exec"), namespace)
    found = namespace["ModelNew"]()(*(item.cuda() for item in inputs)).double().cpu()
    assert float((found - truth).norm() / truth.norm()) < 3e-6
    q, k, v, mask = (item.cuda() for item in inputs)
    eager = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert not eager[:, :, 1].any()


def test_the_file_reads_without_running() -> None:
    text = candidate((3, 40))
    literals = read_literals(text)
    assert literals and literals.about["target"] == "cuda" and literals.about["flags"][0] == "-cubin"
    assert text.startswith("# Foundry kernel, target cuda. Needs torch and nvcc only.")
    assert torch.__version__ and "get_inputs" not in text


RECURRENT = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.GRU(6, 3, 2, bidirectional=True)

    def forward(self, x):
        return self.layers(x)[0]
"""
WALKED = """
torch.manual_seed(3)
x, own, reference = torch.randn(4, 2, 6), ModelNew(), Model()
reference.load_state_dict(own.state_dict())
print(json.dumps({"error": float((own(x) - reference(x)).norm())}))
"""


def test_blocks_that_wait_for_each_other_are_launched_together(forks: Forks, tmp_path: Path) -> None:
    """One after the other, the first would wait for ever. Layers that are alike have one text."""
    namespace: dict[str, Any] = {}
    exec(RECURRENT, namespace)
    graph = capture(namespace["Model"](), [torch.randn(4, 2, 6)])
    lowered = lower([graph], Recipe("cuda"), task_source=RECURRENT, device=replace(H200, cores=7))
    names = re.findall(r"(foundry_k_gru_out0_(?:gates|layer)\d)\(", lowered.source)
    assert names == ["foundry_k_gru_out0_gates0", "foundry_k_gru_out0_layer0"]
    error = run(forks, lowered.source, WALKED, tmp_path, tmp_path / "cache")["error"]
    assert isinstance(error, float) and error < 1e-3
