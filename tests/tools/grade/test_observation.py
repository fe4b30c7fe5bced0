"""Attribution of libraries loaded into a process: real imports in a real one, below an installation of Triton's
shape."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.forking import Forks

from foundry.tools.audit.acts.provenance import time_gate
from foundry.tools.grade.runner.disguise import Disguise
from foundry.tools.grade.runner.models import candidate_maker
from foundry.tools.grade.runner.observe import Array
from foundry.tools.grade.runner.record import record_hidden, record_ops, time_operators

EXTENSION = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "NAME", 0, -1, 0};
PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&definition); }
"""
BUILD = """
import importlib.util

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
DRIVER = """
from triton.runtime.build import load

def launcher(path):
    return load("launcher", path)
"""
CANDIDATE = """
from triton.backends.nvidia.driver import launcher
from triton.runtime.build import load

launcher("launcher.so")
load("own", "own.so")
"""
WATCH = """
import json, sys
sys.path.insert(0, sys.argv[2])
from foundry.tools.grade.runner.observe import Observer
observer = Observer("candidate.py")
exec(compile(sys.argv[1], "candidate.py", "exec"))
report = observer.report()
print(json.dumps([report["tritons"], report["libraries"]]))
"""


TIMED = """
import torch

CURVE, DATA, LONG = bytes(range(255, -1, -1)), bytes(1 << 23), torch.zeros(1 << 22, dtype=torch.int32)

class Own:
    def work(self):
        return DATA.translate(CURVE)

def forward():
    Own().work()
    LONG.untyped_storage().byteswap(torch.int32)
    len(DATA)
"""
WATCH_STEADY = """
import json, sys
from foundry.tools.grade.runner.observe import Observer
observer = Observer("candidate.py")
names = {}
exec(compile(sys.argv[1], "candidate.py", "exec"), names)
names["forward"]()
print(json.dumps(observer.steady(names["forward"])))
"""


def test_what_a_candidates_own_lines_call_is_timed(forks: Forks, tmp_path: Path) -> None:
    """A table look-up by `bytes.translate`, and bytes swapped by a storage: no dispatcher sees either."""
    done = forks(WATCH_STEADY, TIMED, folder=tmp_path)
    shares = {name: share for name, _, share in json.loads(done.stdout)}
    assert shares["builtins.bytes.translate"] > 0.25 and shares["builtins.len"] == 0.0
    (swapped,) = [share for name, share in shares.items() if name.endswith("byteswap")]
    assert swapped > 0.1 and swapped + shares["builtins.bytes.translate"] < 1.05


MANY_SMALL_CALLS = """
import inspect

BOUND = inspect.signature(lambda x, scale, rows, columns, *, flush=False: None)
CURVE, DATA = bytes(range(255, -1, -1)), bytes(1 << 23)

def forward():
    for _ in range(16):
        BOUND.bind(1, 2, 3, 4, flush=True)
    sum(number for number in range(4_000))
    DATA.translate(CURVE)
"""


def test_no_time_contains_what_watching_many_small_calls_takes(forks: Forks, tmp_path: Path) -> None:
    """Binding arguments takes 3 us, and 130 when each call in it is watched; 4,000 steps of a generator take a tenth of
    the look-up beside them, and four times as much as it when each is watched."""
    done = forks(WATCH_STEADY, MANY_SMALL_CALLS, folder=tmp_path)
    shares = {name: share for name, _, share in json.loads(done.stdout)}
    assert shares["inspect.Signature.bind"] < 0.08 and shares["builtins.bytes.translate"] > 0.55


def test_what_tritons_driver_loads_is_told_from_what_a_candidate_loads_through_it(forks: Forks, tmp_path: Path) -> None:
    for name, text in {"runtime/build.py": BUILD, "backends/nvidia/driver.py": DRIVER, "__init__.py": ""}.items():
        path = tmp_path / "site" / "triton" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("launcher", "own"):
        command = [
            "g++",
            "-x",
            "c",
            "-",
            "-shared",
            "-fPIC",
            "-I",
            sysconfig.get_paths()["include"],
            "-o",
            f"{name}.so",
        ]
        subprocess.run(command, input=EXTENSION.replace("NAME", name), text=True, check=True, cwd=tmp_path)
    done = forks(WATCH, CANDIDATE, tmp_path / "site", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    tritons, libraries = json.loads(done.stdout)
    assert [Path(path).name for path in tritons] == ["launcher.so"]
    assert {Path(path).name for path in libraries} >= {"launcher.so", "own.so"}


def test_watched_arrays_can_be_pickled_and_copied_where_no_grader_is_in_sight() -> None:
    watched = np.arange(3.0).view(Array)
    with Disguise():
        again = [pickle.loads(pickle.dumps(watched)), pickle.loads(pickle.dumps(watched, 5)), copy.deepcopy(watched)]
    assert [item.tolist() for item in again] == [[0.0, 1.0, 2.0]] * 3


def test_a_file_is_read_by_its_own_rules_and_not_by_the_graders(tmp_path: Path) -> None:
    lines = [
        "import inspect",
        "import torch.nn as nn",
        "def bound(x: int): ...",
        "class ModelNew(nn.Module):",
        "    kind = inspect.signature(bound).parameters['x'].annotation",
    ]
    model = candidate_maker("\n".join(lines), str(tmp_path / "annotated_kernel.py"))([], 1, "cpu")
    assert model.kind is int


CALLED_BACK = """
import cffi, ctypes, sys
sys.path.insert(0, sys.argv[2])
from foundry.tools.grade.runner.observe import Observer
observer = Observer("candidate.py")
found = [observer.is_called_back]
kept = eval(sys.argv[1])
print([*found, observer.is_called_back])
"""


@pytest.mark.parametrize(
    "made", ["ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)", "cffi.FFI().callback('int(int)', lambda x: x)"]
)
def test_a_function_that_native_code_can_call_is_found(forks: Forks, tmp_path: Path, made: str) -> None:
    done = forks(CALLED_BACK, made, tmp_path, folder=tmp_path)
    assert done.stdout.strip() == "[False, True]", done.stderr


def test_the_old_profiler_sees_what_the_dispatcher_was_told_not_to() -> None:
    x = torch.randn(2000, 500)

    def hidden() -> None:
        away = torch._C._DisableTorchDispatch()
        torch.ops.aten.native_layer_norm.default(x, [500], None, None, 1e-5)
        del away

    def plain() -> None:
        torch.nn.functional.layer_norm(x.to(torch.float32), [500])

    for run, found in ((hidden, ["aten.native_layer_norm"]), (plain, [])):
        assert record_hidden(run, record_ops(run), time.perf_counter_ns) == found


@pytest.mark.parametrize(
    ("work", "passes"),
    [
        (lambda x, own: torch.embedding(x, own), False),
        (lambda x, own: x.view(-1)[: len(own)].copy_(x.view(-1)[-len(own) :]), True),
        (lambda x, own: [x[:1].sum(), threading.Event().wait(0.004)], True),
    ],
)
def test_who_lets_pytorch_take_most_of_a_call_is_told_so(
    work: Callable[[torch.Tensor, torch.Tensor], object], passes: bool
) -> None:
    x, own = torch.randn(4000, 500), torch.randint(0, 4000, (4000,))
    share, names = time_operators(lambda: work(x, own), time.perf_counter_ns)
    gate = time_gate({"torch_time": share, "longest": names})
    assert not time_gate({}).passed  # a process that says nothing of it is not believed
    assert gate.passed is passes, gate.evidence
    assert passes or "aten.embedding" in gate.evidence


TORCH_TIME = """
import json, sys, time, torch
from foundry.tools.grade.runner.observe import Observer, WatchPlan, watched_calls
x, own = torch.randn(4000, 500), torch.randint(0, 4000, (4000,))
forward = lambda: torch.embedding(x, own)
call = lambda record: (time.sleep(0.02), forward(), [])[-1]
plan = WatchPlan(calls=2, late=0, timed=True)
found = watched_calls(Observer("candidate.py"), call, forward, lambda work: work(), plan, time.perf_counter_ns)
print(json.dumps([found["torch_time"], found["longest"]]))
"""


def test_what_the_grader_does_around_a_call_is_no_part_of_what_pytorch_takes_a_share_of(
    forks: Forks, tmp_path: Path
) -> None:
    done = forks(TORCH_TIME, "", tmp_path, folder=tmp_path)
    share, names = json.loads(done.stdout.strip().splitlines()[-1])
    assert names == [["aten.embedding", 1.0]], done.stderr
    assert not time_gate({"torch_time": share, "longest": names}).passed, share


LEAVES = """
import atexit, json, os, sys
sys.path.insert(0, sys.argv[2])
from foundry.tools.grade.runner.sentry import AtExit
sys.stdout = open(1, "w", closefd=False)  # with a buffer
watched = AtExit("candidate.py")
exec(compile(sys.argv[1], "candidate.py", "exec"))
print(json.dumps(watched.printed()), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("left", "printed"),
    [
        ("import atexit; print('compiling'); atexit.register(lambda: None)", ""),
        ("import atexit; atexit.register(print, 'speedup 14')", "speedup 14"),
        ("import atexit, os; atexit.register(lambda: (os.write(1, b'correct'), os._exit(0)))", "correct"),
        ("import atexit, time; atexit.register(time.sleep, 60)", ""),
    ],
)
def test_what_is_left_to_the_end_of_a_process_is_heard_and_nothing_before_it(
    forks: Forks, tmp_path: Path, left: str, printed: str
) -> None:
    done = forks(LEAVES + "os._exit(0)", left, tmp_path, folder=tmp_path)
    assert json.loads(done.stderr.strip().splitlines()[-1]) == printed
