"""The audit's own runs of real candidates: what is left without native code, and what a process was seen to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from foundry.knowledge.candidate import Baseline, Build, Gate
from foundry.knowledge.task import Policy
from foundry.tools.audit import audit, needs_watching
from foundry.tools.audit.acts.earned import earned
from foundry.tools.grade.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.protocol.comparison import expect
from foundry.tools.task.file import read_task

TASK = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(100))

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=1)


def get_inputs():
    return [torch.randn(40, 100)]
"""
KERNEL = r"""
#include <cmath>
extern "C" int softmax(const float* x, const float* w, float* y, long rows, long columns) {
#pragma omp parallel for
  for (long row = 0; row < rows; ++row) {
    const float* in = x + row * columns;
    float* out = y + row * columns;
    float top = -INFINITY;
    double sum = 0;
    for (long i = 0; i < columns; ++i) top = std::fmax(top, out[i] = in[i] * w[i]);
    for (long i = 0; i < columns; ++i) sum += out[i] = std::exp(out[i] - top);
    for (long i = 0; i < columns; ++i) out[i] /= sum;
  }
  return 0;
}
extern "C" int alive() { return 42; }
"""
TOP = f'''\
import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SOURCE = r"""{KERNEL}"""
FOLDER = tempfile.mkdtemp()
subprocess.run(["g++", "-O2", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", FOLDER + "/kernel.so"],
               input=SOURCE, text=True, check=True)
LIBRARY = ctypes.CDLL(FOLDER + "/kernel.so")
LIBRARY.softmax.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
'''
MODEL = """

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(100))

    def forward(self, x):
"""
LAUNCH = """\
out = torch.empty_like(x)
if LIBRARY.softmax(x.data_ptr(), self.scale.data_ptr(), out.data_ptr(), *x.shape):
    raise RuntimeError("the kernel failed")
return out"""


FIRST = float(torch.randn(40, 100, generator=torch.Generator().manual_seed(42))[0, 0])


def candidate(forward: str, top: str = "") -> str:
    return TOP + top + MODEL + "\n".join(f"        {line}" for line in forward.split("\n")) + "\n"


@pytest.fixture(scope="module")
def grader(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "task.py").write_text(TASK)
    task = read_task(folder / "task.py")
    made = Grader(task, describe("cpu"), folder / "scratch", seed=1, zygote=zygote, owns_zygote=False)
    yield made
    made.close()


def runs(grader: Grader, text: str, policy: Policy = "fair") -> list[Gate]:
    return grader.ablate(text, Build(True, 0.0), Baseline(1.0, 0.0, [(40, 100)]), policy)[0]


def failed(gates: list[Gate]) -> dict[str, str]:
    return {gate.gate: gate.evidence for gate in gates if not gate.passed}


def test_an_honest_kernel_is_needed_and_may_build_itself(grader: Grader) -> None:
    text = candidate(LAUNCH)
    gates = runs(grader, text)
    assert failed(gates) == {}
    words = {gate.gate: gate.evidence for gate in gates}
    assert "softmax" in words["own kernels"]
    assert "g++" in words["process events"]
    assert any(name == "symbols (kernel.so)" for name in words)
    assert needs_watching(text, "fair", task_source=TASK)
    whole = audit(text, Build(True, 0.0), [], None, "fair", task_source=TASK, watched=gates)
    assert whole.clean, [gate for gate in whole.gates if not gate.passed]
    assert not audit(text, Build(True, 0.0), [], None, "fair", task_source=TASK).clean


TUNED = """\
best = BEST.get(tuple(x.shape))
if best is None:
    best = BEST[tuple(x.shape)] = tune(self, x)
return launch(self, x, best)"""
TUNER = """
import time
import numpy as np
BEST = {}

def launch(self, x, chunk):
    out = torch.empty_like(x)
    LIBRARY.softmax(x.numpy().ctypes.data, self.scale.data_ptr(), out.data_ptr(), *x.shape)
    return out

def tune(self, x):
    times = {}
    for chunk in (1, 8):
        start = time.perf_counter()
        launch(self, x, chunk)
        times[chunk] = time.perf_counter() - start
    return min(times, key=times.get)
"""
JOINED = (
    candidate(LAUNCH)
    .replace("#include <cmath>", "#include <cmath>\n#include <thread>\n#include <vector>")
    .replace(
        "#pragma omp parallel for\n  for (long row = 0; row < rows; ++row) {",
        "auto work = [&](long first, long step) { for (long row = first; row < rows; row += step) {",
    )
    .replace(
        "out[i] /= sum;\n  }",
        "out[i] /= sum;\n  } };\n  std::vector<std::thread> team;\n"
        "  for (long t = 0; t < 2; ++t) team.emplace_back(work, t, 2);\n  for (auto& t : team) t.join();",
    )
)


@pytest.mark.parametrize(
    "text", [candidate(TUNED, TUNER), JOINED], ids=["tuned at first use", "threads that are joined"]
)
def test_unusual_honest_kernels_pass(grader: Grader, text: str) -> None:
    gates = runs(grader, text)
    whole = audit(text, Build(True, 0.0), [], None, "fair", task_source=TASK, watched=gates)
    assert [gate for gate in whole.gates if not gate.passed] == []


CHEATS = {
    "numpy answers beside a decoy": (
        "ablation",
        candidate(
            "import numpy as np\na = np.exp(x.numpy() * self.scale.detach().numpy())\nLIBRARY.alive()\n"
            "return torch.from_numpy(a / a.sum(1, keepdims=True))"
        ),
    ),
    "it asks its kernel for a sign of life": (
        "ablation",
        candidate(
            "if LIBRARY.alive() != 42:\n    raise RuntimeError('no kernel')\nreturn torch.softmax(x * self.scale, 1)"
        ),
    ),
    "the kernel answers the first call only": (
        "ablation",
        candidate(
            "return next(WORK)(self, x)",
            "import itertools\ndef launch(self, x):\n"
            + "\n".join(f"    {line}" for line in LAUNCH.split("\n"))
            + "\nWORK = itertools.chain([launch], itertools.repeat(lambda s, x: torch.softmax(x * s.scale, 1)))\n",
        ),
    ),
    "no kernel at all": ("own kernels", candidate("return torch.softmax(x * self.scale, 1)")),
    "a BLAS function by its address": (
        "process events",
        candidate(
            LAUNCH,
            "OTHER = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), 'lib', 'libtorch_cpu.so'))\n"
            "ADDRESS = ctypes.cast(OTHER.sgemm_, ctypes.c_void_p)\n",
        ),
    ),
    "a clock in every call": ("steady calls", candidate("import time\ntime.monotonic()\n" + LAUNCH)),
    "a file in every call": ("process events", candidate("open('/proc/meminfo').close()\n" + LAUNCH)),
    "a process of its own": ("process events", candidate(LAUNCH, "subprocess.run(['python3', '-c', 'pass'])\n")),
    "code made at run time": ("process events", candidate(LAUNCH, "getattr(__builtins__, 'exec', eval)('1')\n")),
    "public inputs are recognised": (
        "public inputs",
        candidate(LAUNCH).replace(
            "#pragma omp", f"if (x[0] > {FIRST - 1e-5:.7f}f && x[0] < {FIRST + 1e-5:.7f}f) return 0;\n#pragma omp"
        ),
    ),
    "arithmetic in NumPy, guarded by a decoy": (
        "steady calls",
        candidate(
            "a = x.numpy() * self.scale.detach().numpy()\na = 2.718281828459045 ** (a - a.max(1, keepdims=True))\n"
            "out = torch.from_numpy(a / a.sum(1, keepdims=True))\n"
            "return out if LIBRARY.alive() == 42 else torch.empty_like(x)"
        ),
    ),
    "operators hidden in the library": (
        "symbols (kernel.so)",
        candidate(LAUNCH).replace(
            'extern "C" int alive()',
            'extern "C" void* dlopen(const char*, int);\nextern "C" void* more() { return dlopen("libblas.so", 1); }\n'
            'extern "C" int alive()',
        ),
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_what_is_not_the_kernels_own_work_shows(grader: Grader, name: str) -> None:
    gate, text = CHEATS[name]
    found = failed(runs(grader, text))
    assert gate in found, found
    assert len(found[gate]) > 20


def test_open_asks_for_no_kernel_of_its_own(grader: Grader) -> None:
    names = {gate.gate for gate in runs(grader, candidate("return torch.softmax(x * self.scale, 1)"), "open")}
    assert "ablation" not in names
    assert "process events" in names


# ---------------------------------------------------------------- what had to be computed


def test_copies_and_constants_prove_no_arithmetic() -> None:
    x = torch.randn(4096)
    positive = expect(torch.relu(x).double(), torch.relu(x), "float32", None)
    assert earned([x.clone()], [positive], [x]).right == 0
    assert earned([torch.zeros_like(x)], [positive], [x]).right == 0
    doubled = expect((2 * x).double(), 2 * x, "float32", None)
    assert earned([2 * x], [doubled], [x]).condemns()
    half = torch.cat([2 * x[:2048], torch.full((2048,), float("nan"))])
    assert 0.4 < earned([half], [doubled], [x]).share < 0.6
    assert not earned([torch.full_like(x, float("nan"))], [doubled], [x]).condemns()


def test_integers_count_too() -> None:
    places = torch.randint(5, 500, (100,))
    expected = expect(places, places, "int64", None)
    assert earned([places.clone()], [expected], []).condemns()
    assert not earned([torch.full_like(places, -1)], [expected], []).condemns()
