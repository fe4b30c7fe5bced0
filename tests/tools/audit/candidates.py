"""A small task, a candidate for it that builds itself, and honest files in many styles that really run."""

from __future__ import annotations

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
# Without a header: each test compiles it three times, and <cmath> is most of what that costs.
KERNEL = r"""
extern "C" int softmax(const float* x, const float* w, float* y, long rows, long columns) {
#pragma omp parallel for
  for (long row = 0; row < rows; ++row) {
    const float* in = x + row * columns;
    float* out = y + row * columns;
    float top = -__builtin_inff();
    double sum = 0;
    for (long i = 0; i < columns; ++i) top = __builtin_fmaxf(top, out[i] = in[i] * w[i]);
    for (long i = 0; i < columns; ++i) sum += out[i] = __builtin_expf(out[i] - top);
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


def candidate(forward: str, top: str = "") -> str:
    lines = ["x = x.contiguous()", *forward.split("\n")]
    return TOP + top + MODEL + "\n".join(f"        {line}" for line in lines) + "\n"


# ---------------------------------------------------------------- honest, in styles that look like something else

TUNED = candidate(
    """\
best = BEST.get(tuple(x.shape))
if best is None:
    best = BEST[tuple(x.shape)] = tune(self, x)
return launch(self, x, best)""",
    """
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

def before():
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(4, 4, generator=generator)
    return time.perf_counter(), numbers.sum()

BEFORE = before()
""",
)
JOINED = (
    candidate(LAUNCH)
    .replace('extern "C" int softmax', '#include <thread>\n#include <vector>\nextern "C" int softmax')
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
NAMES = candidate(
    "return run(self, x)",
    """
import argparse, base64, functools, hashlib, inspect, math, multiprocessing, sys, threading, types, zlib
from ctypes import *

KEY = base64.b32encode(hashlib.sha256(b"").digest()), zlib.crc32(b""), multiprocessing.cpu_count()
globals()["MINE"] = LIBRARY
THIS = sys.modules[__name__]
NUMBERS = __import__("math")
SCRATCH = __import__("mmap").mmap(-1, 4096)
for name in ("OMP_NUM_THREADS", "POOL_THREADS", "SOFTMAX_TILE"):
    KEY += (os.environ.get(name), name in os.environ)
MAKERS = {}


def register(name):
    def keep(function):
        MAKERS[name] = function
        return function

    return keep


@register("softmax")
def make_softmax():
    return LIBRARY.softmax


def namespace():
    held = types.SimpleNamespace()
    for name in ("softmax", "alive"):
        setattr(held, name, getattr(LIBRARY, name))
    return held


HELD = namespace()
worker = threading.Thread(target=namespace)
worker.start()
worker.join()


class Kind(type):
    known = {}

    def __new__(mcs, name, bases, body):
        made = super().__new__(mcs, name, bases, body)
        mcs.known[name] = made
        return made


class classproperty:
    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner):
        return self.function(owner)


class Kernels(metaclass=Kind):
    _softmax = None

    @classproperty
    def softmax(cls):
        if cls._softmax is None:
            cls._softmax = MAKERS["softmax"]()
        return cls._softmax


class Wrapper:
    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def call(*arguments):
            return function(*arguments)

        setattr(self, name, call)
        return call


WRAPPED = Wrapper(LIBRARY)
PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, *[ctypes.c_long] * 2)
RUN = PROTOTYPE(("softmax", LIBRARY))


def checked(function):
    signature = inspect.signature(function)

    @functools.wraps(function)
    def inner(*given, **named):
        bound = signature.bind(*given, **named)
        return function(*bound.args, **bound.kwargs)

    return inner


def native(stub):
    function = getattr(LIBRARY, stub.__name__)

    def call(*values):
        return function(*values)

    return call


@native
def softmax(x, w, y, rows, columns): ...


@checked
def run(self, x):
    out = torch.empty_like(x)
    arguments = (x.data_ptr(), self.scale.data_ptr(), out.data_ptr(), *x.shape)
    code = Kernels.softmax(*arguments) or WRAPPED.softmax(*arguments) or RUN(*arguments) or softmax(*arguments)
    if code:
        raise ValueError("index" if code == 1 else "x")
    return out


def reference(x):
    return torch.softmax(x, 1) @ x


def check():
    torch.manual_seed(0)
    assert torch.allclose(ModelNew()(torch.randn(3, 100)), reference(torch.randn(3, 100)))


if __name__ == "__main__":
    check()
""",
)
CLASSES = (
    TOP
    + """

def launch(x, scale):
    out = torch.empty_like(x)
    LIBRARY.softmax(x.data_ptr(), scale.data_ptr(), out.data_ptr(), *x.shape)
    return out


def made(key, _memo={}):
    if key not in _memo:
        _memo[key] = getattr(LIBRARY, "softmax")
    return _memo[key]


class Checked:
    def forward(self, x):
        return x.contiguous()


class Base(Checked, nn.Module):
    pass


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.rows = x.shape[0]
        return launch(x, scale)


class ModelNew(Base):
    library = LIBRARY

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(100))
        self.handles, self.stale, self.calls = {}, True, 0
        self.packed = None
        self.register_load_state_dict_post_hook(lambda module, keys: setattr(module, "stale", True))
        ModelNew.second = LIBRARY

    def handle(self, device):
        found = self.handles.get(device)
        if found is None:
            found = self.handles[device] = ctypes.c_void_p()
        return found

    def weights(self):
        key = (self.scale.data_ptr(), self.scale._version)
        if self.packed is None or self.packed[0] != key:
            self.packed = (key, self.scale.detach().clone())
        return self.packed[1]

    def forward(self, x):
        self.handle(x.device.index)
        made(x.shape[1])
        self.calls += 1
        torch._assert(x.dim() == 2, "rows and columns")
        try:
            x.view(-1)
        except RuntimeError:
            x = x.contiguous()
        return Softmax.apply(super().forward(x), self.weights())
"""
)
OPERATOR = candidate(
    "return softmax(x, self.scale)",
    """

@torch.library.custom_op("mine::softmax", mutates_args=())
def softmax(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    LIBRARY.softmax(x.data_ptr(), scale.data_ptr(), out.data_ptr(), *x.shape)
    return out


@softmax.register_fake
def _(x, scale):
    return torch.empty_like(x)
""",
)
NATIVE = (
    candidate(LAUNCH, "\nLIBRARY.measured.restype = ctypes.c_double\nTOOK = LIBRARY.measured(8)\n")
    .replace(
        'extern "C" int softmax(',
        r"""
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#define ROW(a, b) a##b
#define EACH for (long i = 0; i < 4; ++i)
static float* ROW(buf, fer);
static size_t capacity;
static long last_n = -1;
static double table[64];
static std::map<long, std::vector<float>> kept;
static thread_local std::vector<float> own;
static float scratch(const float* x, long n) {
  if ((size_t)n > capacity) { free(buffer); buffer = (float*)malloc(n * 4); capacity = n; }
  if (n != last_n) { EACH table[i] = i; last_n = n; }
  auto& one = kept[n];
  one.resize(n);
  if ((long)own.size() < n) own.resize(n);
  mlock(buffer, n * 4);
  munlock(buffer, n * 4);
  memcpy(buffer, x, n * 4);
  unsigned old = _mm_getcsr();
  _mm_setcsr(old | 0x8040);
  float s = 0;
  EACH s += buffer[i] * (float)table[i];
  _mm_setcsr(old);
  return std::getenv("SOFTMAX_DEBUG") != nullptr ? s : sysconf(_SC_NPROCESSORS_ONLN) * 0.0f;
}
extern "C" double measured(long n) {
  const auto begun = std::chrono::steady_clock::now();
  std::vector<float> x(n, 1.0f);
  scratch(x.data(), n);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}
extern "C" int softmax(""",
    )
    .replace("#pragma omp parallel for", "  scratch(x, columns);\n#pragma omp parallel for")
)
HONEST = {
    "tuned at first use": TUNED,
    "threads that are joined": JOINED,
    "names, registries, wrappers, prototypes, a self-test": NAMES,
    "mixins, contexts, hooks, handles, weights by version": CLASSES,
    "an operator of its own": OPERATOR,
    "native scratch, tables by shape, a clock that tunes, arithmetic put back": NATIVE,
}
