"""Ways to write an honest kernel that only look like cheats, and the cheats that look like them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foundry.tools.audit import provenance_gates, static_gates
from foundry.tools.audit.acts.conduct import conduct_gates
from foundry.tools.audit.gates import findings
from foundry.tools.audit.text.native_races import race_findings
from foundry.tools.audit.text.source import CandidateSource, read_source
from foundry.tools.grade.runner.observe import Observer
from foundry.tools.grade.runner.record import record_ops

HEAD = '''\
import base64
import ctypes
import hashlib
import inspect
import subprocess
import tempfile
import time
import zlib

import torch
import torch.nn as nn

CODE = r"""
extern "C" void scale(const float* x, float* y, long n) {
#pragma omp parallel for
  for (long i = 0; i < n; i++) y[i] = 2 * x[i];
}
"""


def make():
    folder = tempfile.mkdtemp()
    subprocess.run(["g++", "-x", "c++", "-", "-shared", "-o", folder + "/k.so"], input=CODE.encode(), check=True)
    return ctypes.CDLL(folder + "/k.so")


def pointer(t):
    return ctypes.c_void_p(t.data_ptr())

'''
CALL = """\
        y = torch.empty_like(x)
        {entry}(pointer(x), pointer(y), ctypes.c_long(x.numel()))
        return y
"""


def model(entry: str = "LIB.scale", *, base: str = "nn.Module", members: str = "", top: str = "LIB = make()") -> str:
    return (
        f"{HEAD}\n{top}\n\n\nclass ModelNew({base}):\n{members}\n    def forward(self, x):\n{CALL.format(entry=entry)}"
    )


def left(text: str) -> list[tuple[str, str]]:
    """Findings that watching the process does not settle."""
    return [(found.rule, found.what) for found in findings(text, "fair") if not found.by_watching]


INIT = "    def __init__(self):\n        super().__init__()\n"
WRAPPER = """
class Wrapper:
    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        function = getattr(self._library, name)
        function.restype = None

        def call(*arguments):
            function(*arguments)

        setattr(self, name, call)
        return call

"""
FORWARD = f"    def forward(self, x):\n{CALL.format(entry='LIB.scale')}"
LAMBDA = """    forward = lambda self, x: launch(x, torch.empty_like(x))


def launch(x, y):
    LIB.scale(pointer(x), pointer(y), ctypes.c_long(x.numel()))
    return y
"""
REGISTRY = """
MAKERS = {}


def register(name):
    def keep(function):
        MAKERS[name] = function
        return function

    return keep


@register("scale")
def make_scale():
    return make()


"""
CAPTURE = """
    def capture(self, x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            LIB.scale(pointer(x), pointer(self.out), ctypes.c_long(x.numel()))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            LIB.scale(pointer(x), pointer(self.out), ctypes.c_long(x.numel()))
        self.graph = graph
"""
CLASS_PROPERTY = """
class classproperty:
    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner):
        return self.function(owner)


class Kernels:
    _scale = None

    @classproperty
    def scale(cls):
        if cls._scale is None:
            cls._scale = make().scale
        return cls._scale
"""
CHECKED = """
def checked(function):
    signature = inspect.signature(function)

    @functools.wraps(function)
    def inner(*given, **named):
        bound = signature.bind(*given, **named)
        return function(*bound.args, **bound.kwargs)

    return inner


LIB = make()
"""
MARKED = (
    INIT
    + """        self.stale = True
        self.register_load_state_dict_post_hook(lambda module, keys: setattr(module, "stale", True))
"""
)
SELF_TEST = """
def reference(x):
    return torch.relu(x) * 2


def check():
    torch.manual_seed(0)
    x = torch.randn(3, 3)
    assert torch.allclose(ModelNew().eval()(x), reference(x))


if __name__ == "__main__":
    check()
    print(torch.randn(2, 2), time.time())
"""
TUNED = """
def tune():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 64, generator=generator)
    y = torch.empty_like(x)
    best, least = None, float("inf")
    for library in (make(), make()):
        begin = time.perf_counter()
        library.scale(pointer(x), pointer(y), ctypes.c_long(x.numel()))
        elapsed = time.perf_counter() - begin
        if elapsed < least:
            best, least = library, elapsed
    return best


LIB = tune()
"""
NATIVE_BASE = """
class Native(nn.Module):
    def __init__(self):
        super().__init__()
        self.native = make()

    def call(self, *tensors):
        self.native.scale(*[pointer(t) for t in tensors], ctypes.c_long(tensors[0].numel()))
"""
PACKED = """
class PackedLinear(nn.Linear):
    def forward(self, x):
        y = torch.empty(x.shape[0], self.out_features)
        LIB.scale(pointer(x), pointer(y), ctypes.c_long(x.numel()))
        return y


LIB = make()
"""
OPERATOR = """
LIB = make()


@torch.library.custom_op("mine::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    LIB.scale(pointer(x), pointer(y), ctypes.c_long(x.numel()))
    return y


@scale.register_fake
def _(x):
    return torch.empty_like(x)
"""
CPP_OPERATOR = '''
from torch.utils.cpp_extension import load_inline

CPP = r"""
#include <torch/library.h>
at::Tensor scale(const at::Tensor& x) { auto y = at::empty_like(x); return y; }
TORCH_LIBRARY(my_scale, m) { m.def("scale(Tensor x) -> Tensor"); m.impl("scale", scale); }
"""
load_inline(name="my_scale", cpp_sources=CPP, is_python_module=False)
'''

STYLES = {
    "a property of a class": model("Kernels.scale", top=CLASS_PROPERTY),
    "arguments bound to a signature": "import functools\nimport inspect\n"
    + model(top=CHECKED).replace("    def forward", "    @checked\n    def forward"),
    "library in the class": model("self.library.scale", members="    library = make()\n", top=""),
    "library given to the class": model("self.lib.scale", members=INIT + "        ModelNew.lib = make()\n", top=""),
    "library of the type": model("self.lib.scale", members=INIT + "        type(self).lib = make()\n", top=""),
    "library in a tuple": model("self.lib.scale", members=INIT + "        self.lib, self.size = make(), 3\n", top=""),
    "library made on demand": model(
        "self.lib.scale", members=INIT + "        self.prepare()\n\n    def prepare(self):\n        self.lib = make()\n"
    ),
    "base class of its own": HEAD
    + NATIVE_BASE
    + "\n\nclass ModelNew(Native):\n    def forward(self, x):\n        y = torch.empty_like(x)\n"
    "        self.call(x, y)\n        return y\n",
    "forward in a base class": model().replace("ModelNew", "Work") + "\n\nclass ModelNew(Work):\n    pass\n",
    "self-test": model() + SELF_TEST,
    "tuning": model(top=TUNED),
    "packed again when weights are loaded": model(
        members=INIT + "        self.register_load_state_dict_post_hook(lambda module, keys: module.pack())\n\n"
        "    def pack(self):\n        pass\n"
    ),
    "parameters of nn.Linear, forward of its own": HEAD
    + PACKED
    + "\n\nclass ModelNew(nn.Module):\n"
    + INIT
    + "        self.linear = PackedLinear(3, 3)\n\n    def forward(self, x):\n        return self.linear(x)\n",
    "custom_op": HEAD
    + OPERATOR
    + "\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return scale(x)\n",
    "torch.ops of its own": HEAD
    + CPP_OPERATOR
    + "\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return torch.ops.my_scale.scale(x)\n",
    "build key": model(top="KEY = base64.b32encode(hashlib.sha256(b'').digest()), zlib.crc32(b'')\nLIB = make()"),
    "entry called add": model("LIB.add"),
    "capacity that grows": model().replace(
        'extern "C"', "static float* room;\nstatic long capacity;\nlong fit(long k, long m) {\n"
        "  if (capacity < k * m) capacity = k * m;\n  return capacity;\n}\nextern \"C\"",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STYLES)
def test_the_text_alone_condemns_no_honest_style(name: str) -> None:
    assert left(STYLES[name]) == []


CHEATS = {
    "self-test that runs": ("precomputed", model(top="LIB = make()\nX = torch.randn(3, 3)")),
    "drawn inputs kept": (
        "precomputed",
        model(top="LIB = make()\ndef book():\n    x = torch.randn(3, 3)\n    return {x.sum(): x}\nBOOK = book()"),
    ),
    "script that runs otherwise": (
        "precomputed",
        model() + "\nif __name__ == '__main__':\n    pass\nelse:\n    torch.manual_seed(42)\n",
    ),
    "script with a name of its own": (
        "precomputed",
        model(top="LIB = make()\n__name__ = '__main__'") + "\nif __name__ == '__main__':\n    torch.manual_seed(42)\n",
    ),
    "dead function found by name": (
        "precomputed",
        model() + "\ndef hidden():\n    torch.manual_seed(42)\nglobals()['hid' + 'den']()\n",
    ),
    "dead function found by a name put together": (
        "precomputed",
        model(top="LIB = make()\nimport operator\noperator.attrgetter('__glo' + 'bals__')(make)['hid' + 'den']()")
        + "\ndef hidden():\n    torch.manual_seed(42)\n",
    ),
    "decorated function": (
        "precomputed",
        model() + "\ndef run(f):\n    f()\n@run\ndef hidden():\n    torch.manual_seed(42)\n",
    ),
    "operator of PyTorch replaced": (
        "global_state",
        model(top="LIB = make()\nL = torch.library.Library('aten', 'IMPL')"),
    ),
    "operator of a hidden name": (
        "global_state",
        model(top="LIB = make()\nL = torch.library.Library('at' + 'en', 'IMPL')"),
    ),
    "operator replaced in C++": (
        "global_state",
        model().replace('extern "C"', "TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl(\"mul\", f); }\nextern \"C\""),
    ),
    "forward replaced": ("global_state", model() + "\nModelNew.forward = torch.relu\n"),
    "PyTorch's function given to the class": ("global_state", model() + "\nModelNew.work = torch.relu\n"),
    "a layer under a name of its own": (
        "reference",
        model("self.layer", members=INIT + "        self.layer = nn.ReLU()\n").replace(", pointer", ", x, pointer"),
    ),
    "hook on everybody": ("hooks", model(top="LIB = make()\nnn.Module.register_load_state_dict_post_hook(print)")),
    "seed read": ("phase_detection", model(members="    seen = torch.initial_seed()\n")),
    "errno as a counter": (
        "phase_detection",
        model().replace("        return y\n", "        ctypes.set_errno(ctypes.get_errno() + 1)\n        return y\n"),
    ),
    "renamed layer": (
        "reference",
        model(top="LIB = make()\nclass Fast(nn.LayerNorm):\n    pass\nFAST = Fast(3)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_what_looks_like_it_and_is_no_such_thing_is_still_seen(name: str) -> None:
    rule, text = CHEATS[name]
    assert rule in {found for found, _ in left(text)}, left(text)


RACES = {
    "double s = 0;\n#pragma omp parallel for\nfor (long i = 0; i < n; i++) s += x[i];": True,
    "volatile double s = 0;\n#pragma omp parallel for\nfor (int i = 0; i < n; i++) { s = s + x[i]; }": True,
    "float a = 0, s = 0;\n#pragma omp parallel for num_threads(4)\nfor (int i = 0; i < n; i++) { s -= x[i]; }": True,
    "double s = 0;\n#pragma omp parallel for reduction(+ : s)\nfor (long i = 0; i < n; i++) s += x[i];": False,
    "double s = 0;\n#pragma omp parallel for\nfor (long i = 0; i < n; i++) {\n#pragma omp atomic\ns += x[i]; }": False,
    "#pragma omp parallel for\nfor (long i = 0; i < n; i++) { double s = 0; s += x[i]; y[i] = s; }": False,
    "double s;\n#pragma omp parallel for private(s)\nfor (int i = 0; i < n; i++) { s = 0; s += x[i]; }": False,
    "float s = 0;\n#pragma omp parallel for\nfor (long i = 0; i < n; i += 8) { float m = 0, s = 1; s *= x[i]; }": False,
    "float* p = y;\n#pragma omp parallel for\nfor (int r = 0; r < n; r++) { float* p = y; p += 1; }": False,
    "double t = 0;\n#pragma omp parallel for\nfor (long r = 0; r < n; r++) y[r] += x[r];\nt += y[0];": False,
}


@pytest.mark.parametrize("code", RACES)
def test_sums_of_threads_that_do_not_ask_each_other(code: str) -> None:
    text = f'extern "C" void f(const float* x, float* y, long n) {{\n{code}\n}}\n'
    assert bool(list(race_findings(1, text))) is RACES[code]


def test_an_operator_of_its_own_is_judged_by_what_is_in_it() -> None:
    make: Any = torch.library.Library  # without types
    library = make("foundry_test_styles", "DEF")
    library.define("hides(Tensor x) -> Tensor")
    library.impl("hides", lambda x: torch.softmax(x, -1), "CPU")
    library.define("wraps(Tensor x) -> Tensor")
    library.impl("wraps", lambda x: torch.empty_like(x), "CPU")
    x = torch.ones(64, 64)
    operators = torch.ops.foundry_test_styles
    hidden = record_ops(lambda: operators.hides(x))
    (gate,) = provenance_gates(hidden, None, "fair", reference_work=2.0 * x.nbytes)
    assert not gate.passed and "softmax" in gate.evidence
    (gate,) = provenance_gates(record_ops(lambda: operators.wraps(x)), None, "fair", reference_work=2.0 * x.nbytes)
    assert gate.passed, gate.evidence


@pytest.mark.parametrize("name", ["hswish_pool", "bilinear", "scaled_dot_product"])
def test_an_operator_of_its_own_may_have_any_name_and_arguments(name: str) -> None:
    make: Any = torch.library.Library  # without types
    library = make(f"foundry_test_{name}", "DEF")
    library.define(f"{name}(Tensor x, Tensor weight, int pad) -> Tensor")
    library.impl(name, lambda x, weight, pad: torch.empty_like(x), "CPU")
    operator = getattr(getattr(torch.ops, f"foundry_test_{name}"), name)
    rows = record_ops(lambda: operator(torch.ones(8, 4), torch.ones(3), 1))
    (gate,) = provenance_gates(rows, None, "fair", reference_work=1000.0)
    assert gate.passed and any(name in row["op"] for row in rows)


def test_a_function_that_nobody_calls_is_no_part_of_the_candidate() -> None:
    text = model() + "\n\ndef other(x):\n    return torch.softmax(x, -1)\n"
    source = read_source(text)
    assert isinstance(source, CandidateSource) and "other" not in source.functions


def test_a_library_that_was_deleted_after_it_was_loaded_can_still_be_read(tmp_path: Path) -> None:
    library = tmp_path / "gone.so"
    library.write_bytes(b"\x7fELF")
    observer = Observer.__new__(Observer)  # its hook could not be taken away again
    observer._kept, observer._folder = {}, str(tmp_path)
    observer._keep(str(library))
    library.unlink()
    assert Path(observer._kept[str(library)]).read_bytes() == b"\x7fELF"


def test_every_style_is_a_whole_file() -> None:
    for text in STYLES.values():
        assert all(gate.gate != "readable" or gate.passed for gate in static_gates(text, "fair"))


def test_a_lock_in_forward_and_settings_of_the_build_are_no_offence() -> None:
    seen = {
        "events": [["load", "os.putenv", "TORCH_EXTENSIONS_VERBOSE", 3], ["load", "os.putenv", "MAX_JOBS", 4]],
        "calls": [["_thread.lock.__exit__", 7], ["_thread.RLock.__enter__", 8]],
    }
    assert [gate for gate in conduct_gates(seen, "fair", on_cpu=True) if not gate.passed] == []
    seen["calls"] = [["_thread.start_new_thread", 7]]
    seen["events"] = [["load", "os.putenv", "OMP_NUM_THREADS", 3]]
    assert len([gate for gate in conduct_gates(seen, "fair", on_cpu=True) if not gate.passed]) == 2


# (an honest way, what differs in a cheat's, its rule)
NAMESPACE = """
import types


def load():
    held = types.SimpleNamespace()
    for name in ("scale", "shift"):
        setattr(held, name, getattr(make(), name))
    return held


LIB = load()
"""
NEAR_MISSES = {
    "a mark that a hook sets": (
        model(members=MARKED),
        ('setattr(module, "stale", True)', 'setattr(torch, "allclose", None)'),
        "global_state",
    ),
    "types that a lambda gives": (
        model(top="typed = lambda function: (setattr(function, 'argtypes', POINTERS), function)[1]\nLIB = make()"),
        ("setattr(function, 'argtypes', POINTERS)", "setattr(function, 'forward', POINTERS)"),
        "global_state",
    ),
    "every name of a module that is known": (
        "from ctypes import *\n" + model(),
        ("from ctypes import *", "from ctypes.util import *"),
        "dynamic_code",
    ),
    "a name that came with all others": (
        "from ctypes import *\n" + model(top="LIB = make()\nsizeof(c_float)"),
        ("sizeof(c_float)", "string_at(7, 8)"),
        "introspection",
    ),
    "settings one after another": (
        model(top="for name in ('OMP_NUM_THREADS', 'POOL_THREADS'):\n    print(os.environ.get(name))\nLIB = make()"),
        ("'POOL_THREADS')", "'PYTEST_CURRENT_TEST')"),
        "files",
    ),
    "settings that are known": (
        model(top="for name in ('OMP_NUM_THREADS',):\n    print(os.environ.get(name))\nLIB = make()"),
        ("print(os.environ.get(name))", "name = make()\n    print(os.environ.get(name))"),
        "files",
    ),
    "settings that a pattern names": (
        model(top="for name in ('OMP_NUM_THREADS',):\n    print(os.environ.get(name))\nLIB = make()"),
        ("print(os", "match 'PYTEST_CURRENT' + '_TEST':\n        case name:\n            print(os"),
        "files",
    ),
    "parameters that are compared": (
        "import numpy as np\n"
        + model().replace("        y =", "        np.array_equal(self.old, self.weight)\n        y ="),
        ("np.array_equal(self.old, self.weight)", "np.array_equal(self.old, x.numpy())"),
        "imports",
    ),
    "strides of an array": (
        model().replace("        y =", "        x = x if x.numpy().strides[0] == 4 else x.contiguous()\n        y ="),
        ("x.numpy().strides[0] == 4", "x.numpy()[0] == 4"),
        "input_shortcut",
    ),
    "a signature that is looked at": (
        "import functools\nimport inspect\n"
        + model(top=CHECKED).replace("    def forward", "    @checked\n    def forward"),
        ("inspect.signature(function)", "inspect.stack()"),
        "introspection",
    ),
    "what a property of a class gives": (
        model("Kernels.scale", top=CLASS_PROPERTY),
        ("def scale(cls):", "def scale(cls, x):\n        cls._last = x"),
        "result_cache",
    ),
    "a prototype with its type said": (
        model(
            top="kind: object = ctypes.CFUNCTYPE(None, ctypes.c_void_p)\nRUN = kind(('scale', make()))\nLIB = make()"
        ),
        ("kind(('scale', make()))", "kind(make().address)"),
        "introspection",
    ),
    "a mark that is a method": (
        model(members=MARKED),
        ('setattr(module, "stale", True)', 'setattr(module, "forward", make)'),
        "global_state",
    ),
    "a method that a compiler leaves alone": (
        model().replace("    def forward", "    @torch.jit.ignore\n    def forward"),
        ("@torch.jit.ignore", "@torch.jit.script_method"),
        "dynamic_code",
    ),
    "functions in a namespace of its own": (
        model(top=NAMESPACE),
        ("held = types.SimpleNamespace()", "held = torch"),
        "global_state",
    ),
    "a namespace that is another's": (
        model(top=NAMESPACE),
        ("import types\n", "types = torch.nn.functional\n"),
        "global_state",
    ),
    "a namespace under a name for two": (
        model(top=NAMESPACE),
        ("def load():", "def load(held=torch):"),
        "global_state",
    ),
    "a wrapper that remembers its functions": (
        model("LIB.scale", top=f"{WRAPPER}\nLIB = Wrapper(make())"),
        ("setattr(self, name, call)", "setattr(torch, name, call)"),
        "global_state",
    ),
    "a module by its name": (
        model(top='folder = __import__("tempfile").mkdtemp()\nmath = __import__("math")\nLIB = make()'),
        ('__import__("math")', '__import__("gc").get_objects()'),
        "introspection",
    ),
    "a method that is a lambda": (
        model().replace(FORWARD, LAMBDA),
        ("launch(x, torch.empty_like(x))", "torch.softmax(x, -1)"),
        "torch_compute",
    ),
    "threads that build while the file is loaded": (
        model(top="import threading\nLIB, made = make(), threading.Thread(target=make)\nmade.start()\nmade.join()"),
        ("        return y", "        threading.Thread(target=make).start()\n        return y"),
        "threads",
    ),
    "counting the machine's cores": (
        model(top="import multiprocessing\nCORES, LIB = multiprocessing.cpu_count(), make()"),
        ("multiprocessing.cpu_count()", "multiprocessing.Process(target=make).start()"),
        "threads",
    ),
    "a check of PyTorch's": (
        model().replace("        y = torch", "        torch._assert(x.dim() == 2, 'rows')\n        y = torch"),
        ("torch._assert(x.dim() == 2, 'rows')", "torch._softmax(x, 1, False)"),
        "torch_compute",
    ),
    "a registry": (
        model(top=REGISTRY + "LIB = MAKERS['scale']()"),
        ("MAKERS[name] = function\n        return function", "MAKERS[name] = function()\n        return function"),
        "result_cache",
    ),
    "the types of an exported function": (
        model(
            "RUN",
            top='PROTO = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.c_long)\nRUN = PROTO(("scale", make()))',
        ),
        ('PROTO(("scale", make()))', "PROTO(id(torch.relu) + 16)"),
        "introspection",
    ),
    "one number into a result": (
        model(members=INIT).replace(
            "        return y", "        ctypes.c_float.from_address(y.data_ptr()).value = 2.0\n        return y"
        ),
        (
            "ctypes.c_float.from_address(y.data_ptr()).value = 2.0",
            "print(ctypes.c_float.from_address(x.data_ptr()).value)",
        ),
        "introspection",
    ),
    "a graph that is warmed up beside the stream": (
        model(members=INIT + CAPTURE),
        ("        torch.cuda.current_stream().wait_stream(side)\n        graph", "        graph"),
        "threads",
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_told_apart(name: str) -> None:
    honest, (part, cheat), rule = NEAR_MISSES[name]
    assert left(honest) == []
    assert part in honest and rule in {found for found, _ in left(honest.replace(part, cheat))}


def test_a_setattr_of_its_own_is_a_function_like_any_other() -> None:
    own = "def setattr(owner, name, value):\n    owner.__dict__[name] = torch.softmax(value, -1)\n\n\nLIB = make()"
    text = model(top=own).replace("        return y", "        setattr(self, 'y', x)\n        return self.y")
    assert {rule for rule, _ in left(text)} & {"torch_compute", "result_cache"}
