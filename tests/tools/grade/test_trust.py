"""Cheats that leave something behind in their process, put work off, answer from memory or skip hard inputs; and honest
kernels beside each that must pass. Every candidate runs in a real process."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
from tests.tools.grade import asking
from tests.waiting import PATIENCE_S

from foundry.knowledge.candidate import Baseline, Build, Stage, Verdict
from foundry.knowledge.device import Device
from foundry.tools.grade.host.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.imports import find_redirected
from foundry.tools.process.procfs import mapped_code
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.BatchNorm1d(n)

    def forward(self, x, y):
        return torch.softmax(x, dim=1), self.norm(y)


def get_inputs():
    return [torch.randn(64, 256), torch.randn(128, 96)]


def get_init_inputs():
    return [96]
"""
BUILT = Build(ok=True, seconds=0.0, artifact="library.so")
RIGHT = "return torch.softmax(x, dim=1), self.norm(y)"
PROCESSES, STATE, FUNCTIONS = "threads and processes", "global state", "function identities"


def candidate(forward: str = RIGHT, *, top: str = "", init: str = "pass") -> str:
    body, start = ("\n".join(" " * 8 + line for line in text.splitlines()) for text in (forward, init))
    return f"""
import ctypes, os, signal, socket, subprocess, sys, threading, time
import torch
import torch.nn as nn
import torch.nn.functional as F
{top}

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.BatchNorm1d(n)
        self.calls = 0
{start}

    def forward(self, x, y):
        self.calls += 1
{body}
"""


@pytest.fixture(scope="module")
def device() -> Device:
    return describe("cpu")


@pytest.fixture(scope="module")
def grader(device: Device, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    folder = tmp_path_factory.mktemp("trust")
    (folder / "two.py").write_text(TASK)
    task = read_task(folder / "two.py")
    made = Grader(task, device, folder, seed=3, zygote=zygote, owns_zygote=False, run_limit_s=PATIENCE_S)
    yield made
    made.close()


@pytest.fixture(scope="module")
def baseline(grader: Grader) -> Baseline:
    return grader.baseline()


def verify(grader: Grader, baseline: Baseline, text: str, stage: Stage = "screen") -> Verdict:
    return asking.verify(grader, text, BUILT, stage, baseline)


HONEST = {
    "plain": candidate(),
    "imports compilers, starts a child and waits for it, says where to find CUDA": candidate(
        top="import torch.utils.cpp_extension, torch.fx\nsubprocess.run(['true'], check=True)\n"
        "os.environ['TORCH_CUDA_ARCH_LIST'] = '9.0a'\nos.environ.setdefault('OMP_NUM_THREADS', '2')"
    ),
    "parked threads, a workspace, weights prepared once": candidate(
        "list(POOL.map(lambda i: i * i, range(8)))\nself.space.copy_(x)\ntorch.mm(self.space, self.space.t())\n"
        + RIGHT,
        top="from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(4)",
        init="self.space = torch.empty(64, 256)",
    ),
    "another order of summation and one-pass variance": candidate(
        "e = torch.exp(x - x.amax(1, keepdim=True))\nm = y.mean(0)\nv = ((y * y).mean(0) - m * m).clamp(min=0)\n"
        "k = y.shape[0] / (y.shape[0] - 1)\nn = self.norm\n"
        "n.running_mean.mul_(0.9).add_(m, alpha=0.1)\nn.running_var.mul_(0.9).add_(v * k, alpha=0.1)\n"
        "n.num_batches_tracked.add_(1)\n"
        "return e * (1 / e.sum(1, keepdim=True)), (y - m) * (torch.rsqrt(v + n.eps) * n.weight) + n.bias"
    ),
    "runs in inference mode, allows TF32": candidate(
        "with torch.inference_mode():\n    r = torch.softmax(x, dim=1)\nreturn r, self.norm(y)",
        top="torch.backends.cuda.matmul.allow_tf32 = True\ntorch.set_float32_matmul_precision('high')\n"
        "torch.backends.cudnn.benchmark = True",
    ),
    "loses NaN in a maximum and calls an infinite score a certainty": candidate(
        "m = torch.where(x > -3e38, x, torch.tensor(-3e38)).amax(1, keepdim=True)\n"
        "e = torch.exp(x - m)\nreturn e / e.sum(1, keepdim=True), self.norm(y)"
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_kernels_pass(grader: Grader, baseline: Baseline, name: str) -> None:
    verdict = verify(grader, baseline, HONEST[name], "full")
    assert verdict.correct, verdict.evidence
    assert {PROCESSES, STATE, FUNCTIONS, "finished on return"} <= {gate.gate for gate in verdict.gates}


NAMED_LIKE_A_COMPILER = """
code = "#include <signal.h>\\nstatic void quiet(int n) {}\\nvoid install(void) { signal(SIGHUP, quiet); }"
subprocess.run(["g++", "-x", "c", "-", "-shared", "-fPIC", "-o", "libtriton.so"], input=code.encode(), check=True)
ctypes.CDLL(os.path.abspath("libtriton.so")).install()
"""


@pytest.mark.parametrize(
    ("text", "gate", "evidence"),
    [
        (candidate(init="torch.set_num_threads(1)"), STATE, "torch.get_num_threads() went from"),
        (candidate(init="torch.set_flush_denormal(True)"), STATE, "denormal numbers went from 'kept' to 'flushed"),
        (candidate(init="import ctypes; ctypes.CDLL('libm.so.6').fesetround(0x400)"), STATE, "rounding went from"),
        (candidate(top="os.environ['LANG'] = 'C'"), STATE, "the environment variable LANG was changed"),
        (candidate(top="signal.signal(signal.SIGSEGV, lambda *a: None)"), STATE, "SIGSEGV has a handler now"),
        (candidate(top=NAMED_LIKE_A_COMPILER), STATE, "SIGHUP has a handler now"),
        (
            candidate(top="ctypes.CDLL(None).signal(10, ctypes.c_void_p(1))"),
            STATE,
            "SIGUSR1 is ignored now",
        ),
        (candidate(top="sys.setprofile(lambda *a: None)"), STATE, "sys.setprofile was set"),
        (
            candidate(top="nn.modules.module.register_module_forward_hook(lambda *a: None)"),
            STATE,
            "_global_forward_hooks was set",
        ),
        (
            candidate(top="torch.overrides.BaseTorchFunctionMode().__enter__()"),
            STATE,
            "torch function modes went from 0 to 1",
        ),
        (
            candidate(
                top="LIB = torch.library.Library('aten', 'IMPL')\n"
                "LIB.impl('relu', lambda x: x.clamp(min=0), 'CPU', allow_override=True)"
            ),
            STATE,
            "PyTorch's own aten::relu was given another kernel",
        ),
        (candidate(top="sys.modules['json'] = sys"), STATE, "sys.modules['json'] was replaced"),
        (candidate("time.perf_counter_ns = lambda: 0\n" + RIGHT), FUNCTIONS, "time.perf_counter_ns was replaced"),
        (candidate(top="F.gelu = F.relu"), FUNCTIONS, "torch.nn.functional.gelu was replaced"),
        (candidate(top="torch.Tensor.copy_ = torch.Tensor.zero_"), FUNCTIONS, "now hides TensorBase.copy_"),
        (
            candidate(
                top="import foundry.tools.grade.runner.tensors as t\nt.changed.__code__ = (lambda slot: []).__code__",
            ),
            FUNCTIONS,
            "the code of foundry.tools.grade.runner.tensors.changed was changed",
        ),
        (
            candidate(
                top="def table(f): return ctypes.c_void_p.from_address(id(f) + 16).value + 8\n"
                "place = ctypes.c_void_p.from_address(table(time.perf_counter_ns))\n"
                "place.value = ctypes.c_void_p.from_address(table(time.time_ns)).value"
            ),
            FUNCTIONS,
            "the code of time.perf_counter_ns was changed",
        ),
        (candidate(init="self.s = socket.socketpair()"), PROCESSES, "a socket to another process was left open"),
        (
            candidate(
                "for name in os.listdir('/proc/self/fd'):\n"
                "    if int(name) > 2:\n"
                "        try: os.write(int(name), b'J{\"written\": true}')\n"
                "        except OSError: pass\n" + RIGHT
            ),
            "one answer to each question",
            "the process answered another question than the one asked",
        ),
    ],
)
def test_what_is_left_behind_in_the_process_is_seen(
    grader: Grader, baseline: Baseline, text: str, gate: str, evidence: str
) -> None:
    verdict = verify(grader, baseline, text)
    proven = "not_allowed" if gate == "global state" else "cheating"  # a setting that was left changed is no conviction
    assert (verdict.outcome, verdict.gates[-1].gate) == (proven, gate), verdict.evidence
    assert evidence in verdict.evidence and not verdict.gates[-1].passed


PATCH = """
libc = ctypes.CDLL(None)
place = ctypes.cast(ctypes.CDLL("libm.so.6").cosh, ctypes.c_void_p).value
assert libc.mprotect(ctypes.c_void_p(place & ~4095), 8192, 7) == 0
ctypes.memset(place, 0xC3, 1)
"""


def cached(key: str) -> str:
    forward = f"key = {key}\nif key not in CACHE: CACHE[key] = torch.softmax(x, 1)\n"
    return candidate(forward + "return CACHE[key].clone(), self.norm(y)", top="CACHE = {}")


@pytest.mark.parametrize(
    ("text", "stage", "gate"),
    [
        (candidate(top=PATCH), "full", FUNCTIONS),
        (cached("(x.data_ptr(), y.data_ptr())"), "screen", "randomised parameters: computed anew"),
        (cached("(id(x), x._version, self.norm.weight._version)"), "full", "few elements changed: computed anew"),
        (cached("float(x.view(-1)[::97].sum())"), "full", "few elements changed"),
        (
            candidate(
                "right = torch.softmax(x, dim=1)\nlate = torch.zeros_like(right)\n"
                "threading.Timer(0.02, lambda: late.copy_(right)).start()\nreturn late, self.norm(y)"
            ),
            "screen",
            "finished on return",
        ),
        (
            candidate("r = torch.softmax(x, dim=1)\nthreading.Timer(0.03, r.zero_).start()\nreturn r, self.norm(y)"),
            "full",
            "finished on return",
        ),
        (candidate("self.norm.bias.data[0] += 1e-9\n" + RIGHT), "full", "parameters unchanged"),
        (
            candidate(
                "threading.Thread(target=spin, daemon=True).start()\n" + RIGHT,
                top="def spin():\n    a = torch.ones(300, 300)\n    end = time.time() + 2\n"
                "    while time.time() < end: a @ a",
            ),
            "full",
            PROCESSES,
        ),
    ],
)
def test_answers_from_memory_and_work_put_off(
    grader: Grader, baseline: Baseline, text: str, stage: Stage, gate: str
) -> None:
    verdict = verify(grader, baseline, text, stage)
    assert not verdict.correct and verdict.gates[-1].gate.startswith(gate), verdict.evidence
    if "few elements changed" not in verdict.gates[-1].gate:
        assert verdict.outcome == ("wrong_result" if gate == "parameters unchanged" else "cheating")


@pytest.mark.parametrize(
    ("forward", "gate"),
    [
        ("e = torch.exp(x)\nreturn e / e.sum(1, keepdim=True), self.norm(y)", "mixed exponents"),
        (
            "n = self.norm\nreturn torch.softmax(x, 1), F.batch_norm(y, None, None, n.weight, n.bias, True)",
            "as given: updated buffers",
        ),
        ("return torch.softmax(x, 1) + 0 * x.sum(), self.norm(y)", "non-finite"),
        ("s = x.clamp(-300, 300)\nreturn torch.softmax(s, 1), self.norm(y)", "x100"),
        ("r = torch._neg_view(-torch.softmax(x, 1))\nreturn r, self.norm(y)", "as given"),
    ],
)
def test_what_ordinary_inputs_do_not_show(grader: Grader, baseline: Baseline, forward: str, gate: str) -> None:
    verdict = verify(grader, baseline, candidate(forward), "full")
    is_wrong = verdict.outcome in ("wrong_result", "inaccurate")  # by how many elements of this draw differ
    assert is_wrong and verdict.gates[-1].gate == gate, verdict.evidence


def test_a_candidate_has_its_own_files_only_and_cannot_write_to_its_inputs(grader: Grader, baseline: Baseline) -> None:
    """Standard streams, the channel to the main process, the link to the judge, sealed inputs and parameters, and the
    output memory of this call."""
    text = candidate(
        "found = {}\n"
        "for n in os.listdir('/proc/self/fd'):\n"
        "    try: found[n] = os.readlink('/proc/self/fd/' + n)\n"
        "    except FileNotFoundError: continue  # it was the folder's own\n"
        "found = {n: w for n, w in found.items() if int(n) > 2 and not w.startswith('/proc/')}\n"
        "assert sum(w.startswith('socket') for w in found.values()) == 2, found\n"
        "outputs = sum(w.startswith('/memfd:outputs') for w in found.values())\n"
        "assert outputs <= 1, found\n"
        "sealed = [n for n, w in found.items() if w.startswith('/memfd:bundle')]\n"
        "assert len(found) == 2 + outputs + len(sealed), found\n"
        "for n in sealed:\n"
        "    try: os.pwrite(int(n), b'x', 0)\n"
        "    except PermissionError: continue\n"
        "    raise AssertionError('written')\n" + RIGHT
    )
    verdict = verify(grader, baseline, text)
    assert verdict.correct, verdict.evidence


@pytest.mark.skipif(platform.machine() != "x86_64", reason="import tables are read on x86-64 only")
def test_a_call_of_the_interpreter_that_leads_into_a_new_library_is_seen() -> None:
    known = mapped_code()
    assert find_redirected(known) == []
    found = find_redirected(frozenset(path for path in known if not path.rsplit("/", 1)[-1].startswith("libc")))
    assert found and all("libc" in line.partition(" leads into ")[2] for line in found)


@pytest.mark.parametrize(
    ("text", "gates"),
    [
        (candidate("if self.calls > 150: return torch.zeros_like(x), self.norm(y)\n" + RIGHT), {"same answer twice"}),
        (
            candidate(
                "out = self.ring[self.calls % 20].copy_(torch.softmax(x, dim=1))\nreturn out, self.norm(y)",
                init="self.ring = [torch.empty(64, 256) for _ in range(20)]",
            ),
            {"as given: outputs own their memory", "many calls"},  # how many come before depends on the machine
        ),
    ],
    ids=["counter", "ring of outputs"],
)
def test_what_changes_with_the_number_of_calls_is_caught(
    grader: Grader, baseline: Baseline, text: str, gates: set[str]
) -> None:
    verdict = verify(grader, baseline, text, "full")
    assert not verdict.correct and verdict.gates[-1].gate in gates, verdict.evidence
