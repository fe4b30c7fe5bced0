"""The audit's own runs of real candidates: what is left without native code, and what a process was seen to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.forking import Forks
from tests.tools.audit.candidates import HONEST, LAUNCH, TASK, candidate
from tests.tools.grade import asking

from foundry.knowledge.candidate import Baseline, Build, Gate
from foundry.knowledge.task import Policy
from foundry.tools.audit import audit, needs_watching
from foundry.tools.audit.acts.earned import measure_earned
from foundry.tools.grade.host.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.protocol.comparison import expect
from foundry.tools.protocol.orders import LEADS
from foundry.tools.task.file import read_task

FIRST = float(torch.randn(40, 100, generator=torch.Generator().manual_seed(42))[0, 0])


@pytest.fixture(scope="module")
def grader(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "task.py").write_text(TASK)
    task = read_task(folder / "task.py")
    made = Grader(task, describe("cpu"), folder / "scratch", seed=1, zygote=zygote, owns_zygote=False)
    yield made
    made.close()


def runs(grader: Grader, text: str, policy: Policy = "fair") -> list[Gate]:
    return asking.ablate(grader, text, Build(True, 0.0), Baseline(1.0, 0.0, [(40, 100)]), policy)


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
    assert needs_watching(text, task_source=TASK)
    whole = audit(text, Build(True, 0.0), [], None, "fair", task_source=TASK, watched=gates)
    assert whole.clean, [gate for gate in whole.gates if not gate.passed]
    alone = audit(text, Build(True, 0.0), [], None, "fair", task_source=TASK)
    assert [gate.gate for gate in alone.gates if not gate.passed] == [LEADS]  # no process followed them


@pytest.mark.parametrize("style", HONEST)
def test_honest_files_in_unusual_styles_pass(grader: Grader, style: str) -> None:
    text = HONEST[style]
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
    "an answer for calls that follow each other at once": (
        "other clocks",
        candidate(
            "import time\nself.before, last = time.monotonic(), getattr(self, 'before', 0)\n"
            + LAUNCH.replace("return", "if self.before - last < 2e-4:\n    out[0] += 1e-3\nreturn")
        ),
    ),
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
    "its own kernel while a grader is in sight": (
        "without a grader in sight",
        candidate(
            "if not SEEN:\n    return torch.zeros_like(x)\n" + LAUNCH,
            "import sys\nSEEN = 'foundry' in sys.modules\n",
        ),
    ),
    "another kernel when nobody grades, by the variables": (
        "without a grader in sight",
        candidate(
            "if not SEEN:\n    return torch.zeros_like(x)\n" + LAUNCH,
            "SEEN = any(name.startswith('FOUNDRY') for name in os.environ)\n",
        ),
    ),
    "an answer that is kept behind a whole comparison": (
        "computed anew",
        candidate(
            "if LAST and torch.equal(LAST[0], x):\n    return LAST[1].clone()\n"
            + LAUNCH.replace("return out", "LAST[:] = [x.clone(), out]\nreturn out.clone()"),
            "LAST = []\n",
        ),
    ),
    "an answer that the kernel keeps behind a whole comparison": (
        "computed anew",
        candidate(LAUNCH)
        .replace(
            'extern "C" int softmax',
            '#include <cstring>\nstatic float given[4000], kept[4000];\nextern "C" int softmax',
        )
        .replace("#pragma omp", "if (!memcmp(given, x, 16000)) { memcpy(y, kept, 16000); return 0; }\n#pragma omp")
        .replace(
            "  return 0;\n}\nextern", "  memcpy(given, x, 16000);\n  memcpy(kept, y, 16000);\n  return 0;\n}\nextern", 1
        ),
    ),
    "PyTorch for other shapes": (
        "provenance (fewer rows)",
        candidate("if x.shape[0] != 40:\n    return torch.softmax(x * self.scale, 1)\n" + LAUNCH),
    ),
    "NumPy after a hundred calls": (
        "steady calls",
        candidate(
            "if next(CALLS) > 100:\n    import numpy as np\n    a = np.exp(x.numpy() * self.scale.detach().numpy())\n"
            "    return torch.from_numpy(a / a.sum(1, keepdims=True))\n" + LAUNCH,
            "import itertools\nCALLS = itertools.count()\n",
        ),
    ),
    "a look at who asks, through a helper of Python's": (
        "process events",
        candidate("import inspect\nif inspect.currentframe() is None:\n    return x\n" + LAUNCH),
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
    assert name != "code made at run time" or "write that code as functions and classes of the file" in found[gate]


CFFI = """import cffi
FFI = cffi.FFI()
FFI.cdef("int softmax(void*, void*, void*, long, long); void sgemm_();")
LIBRARY = FFI.dlopen(FOLDER + "/kernel.so")
def at(tensor):
    return FFI.cast("void*", tensor.data_ptr())
"""
BY_CFFI = LAUNCH.replace(
    "x.data_ptr(), self.scale.data_ptr(), out.data_ptr(),", "at(x.detach()), at(self.scale), at(out),"
)


@pytest.mark.slow
def test_functions_that_cffi_finds_are_judged_as_those_of_ctypes(grader: Grader) -> None:
    pytest.importorskip("cffi")
    gates = runs(grader, candidate(BY_CFFI, CFFI))
    assert failed(gates) == {}
    assert {gate.gate: gate.evidence for gate in gates}["own kernels"] == "forward depends on softmax"
    torchs = "os.path.join(os.path.dirname(torch.__file__), 'lib', 'libtorch_cpu.so')"
    borrowed = failed(runs(grader, candidate(BY_CFFI, f"{CFFI}OTHER = FFI.dlopen({torchs}).sgemm_\n")))
    assert "looks up sgemm_, which belongs to a vendor's" in borrowed["process events"]
    assert "libtorch_cpu.so, a library that the candidate did not build" in borrowed["mapped code"]
    decoy = "LIBRARY.softmax(at(x), at(self.scale), at(x * 0), 0, 0)\nreturn torch.softmax(x * self.scale, 1)"
    assert "ablation" in failed(runs(grader, candidate(decoy, CFFI)))


def test_open_asks_for_no_kernel_of_its_own(grader: Grader) -> None:
    names = {gate.gate for gate in runs(grader, candidate("return torch.softmax(x * self.scale, 1)"), "open")}
    assert "ablation" not in names
    assert "process events" in names


# ---------------------------------------------------------------- what had to be computed


def test_copies_and_constants_prove_no_arithmetic() -> None:
    x = torch.randn(4096)
    positive = expect(torch.relu(x).double(), torch.relu(x), "float32", None)
    assert measure_earned([x.clone()], [positive], lambda: [x]).right == 0
    assert measure_earned([torch.zeros_like(x)], [positive], lambda: [x]).right == 0
    doubled = expect((2 * x).double(), 2 * x, "float32", None)
    assert measure_earned([2 * x], [doubled], lambda: [x]).condemns()
    half = torch.cat([2 * x[:2048], torch.full((2048,), float("nan"))])
    assert 0.4 < measure_earned([half], [doubled], lambda: [x]).share < 0.6
    numbers = (x.abs() * 9).to(torch.uint8)  # which hold no -1, as constants may be
    assert measure_earned([numbers], [expect(numbers, numbers, "uint8", None)], lambda: [x]).condemns()
    mask = x > 0.5
    yes_or_no = expect(mask, mask, "bool", None)
    assert measure_earned([mask, 2 * x], [yes_or_no, doubled], lambda: [x]).condemns(), (
        "a mask beside numbers proves nothing"
    )
    assert not measure_earned([torch.full_like(x, float("nan"))], [doubled], lambda: [x]).condemns()


def test_integers_count_too() -> None:
    places = torch.randint(5, 500, (100,))
    expected = expect(places, places, "int64", None)
    assert measure_earned([places.clone()], [expected], list).condemns()
    assert not measure_earned([torch.full_like(places, -1)], [expected], list).condemns()


# ---------------------------------------------------------------- in every process, at every call


LOOKS = """\
import traceback, inspect, warnings
def honest():
    warnings.warn("no", stacklevel=2)
    try:
        1 / 0
    except ZeroDivisionError:
        traceback.format_exc()
    return inspect.signature(honest)
def frames():
    try:
        1 / 0
    except ZeroDivisionError as error:
        return error.__traceback__.tb_frame.f_back
def stack():
    return inspect.stack()
"""
SENTRY = """\
import sys
from foundry.tools.grade.runner.sentry import Sentry
text = sys.stdin.read()
sentry = Sentry("/candidate.py")
names = {}
exec(compile(text, "/candidate.py", "exec"), names)
names["honest"]()
assert sentry.findings() == [], sentry.findings()
names["frames"]()
names["stack"]()
print([words for words, event in sentry.findings()])
"""


def test_the_sentry_sees_who_looks_at_its_callers(forks: Forks) -> None:
    """In a process of its own: the hook could not be taken away again."""
    done = forks(SENTRY, stdin=LOOKS)
    assert done.stdout.strip() == "['line 13: looks into its callers', 'line 15: looks into its callers']", done.stderr
