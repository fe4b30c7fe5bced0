import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import nn


class NativeKernel:
    """A shared library that is built when somebody first calls one of its functions."""

    def __init__(self, name: str, code: str, flags=("-O3", "-march=native", "-pthread")):
        self.name, self.code, self.flags = name, code, flags
        self._dll = None

    def _build(self) -> ctypes.CDLL:
        if shutil.which("g++") is None:
            raise RuntimeError("g++ is needed to build " + self.name)
        work = Path(tempfile.mkdtemp(prefix=self.name + "_"))
        (work / "source.cc").write_text(self.code)
        out = work / (self.name + ".so")
        done = subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", *self.flags, str(work / "source.cc"), "-o", str(out)],
                              capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return ctypes.CDLL(str(out))

    def __call__(self, function: str, *args):
        if self._dll is None:
            self._dll = self._build()
        status = getattr(self._dll, function)(*args)
        if status != 0:
            raise RuntimeError(f"{self.name}.{function} said {status}")


KERNEL = NativeKernel("online_softmax", r"""
#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>

namespace {

struct Running {            // maximum and sum so far (Milakov & Gimelshein, "online normalizer")
    float top = -INFINITY;
    double sum = 0.0;
    void push(float v) {
        if (v > top) {
            sum = (top == -INFINITY ? sum : sum * std::exp((double)top - v)) + 1.0;
            top = v;
            if (v == INFINITY) sum = NAN;           // inf - inf
        } else if (v != -INFINITY || top != -INFINITY) {
            sum += std::exp(v - top);               // NaN lands here and stays in the sum
        }
    }
};

void rows(const float* x, float* y, size_t begin, size_t end, size_t width) {
    for (size_t r = begin; r < end; ++r, (void)0) {
        const float* in = x + r * width;
        float* out = y + r * width;
        Running run;
        for (size_t i = 0; i < width; ++i) run.push(in[i]);
        const float scale = (float)(1.0 / run.sum);
        if (run.top == -INFINITY || std::isnan(run.sum)) {       // nothing finite: PyTorch says NaN
            for (size_t i = 0; i < width; ++i) out[i] = NAN;
            continue;
        }
        for (size_t i = 0; i < width; ++i) out[i] = std::exp(in[i] - run.top) * scale;
    }
}

}  // namespace

extern "C" int forward(const float* x, float* y, size_t count, size_t width, int workers) {
    if (workers < 1) workers = 1;
    std::vector<std::thread> crew;
    const size_t share = (count + workers - 1) / workers;
    for (int w = 1; w < workers; ++w) {
        size_t b = share * w, e = b + share > count ? count : b + share;
        if (b < e) crew.emplace_back(rows, x, y, b, e, width);
    }
    rows(x, y, 0, share < count ? share : count, width);
    for (auto& t : crew) t.join();
    return 0;
}
""")


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise TypeError(f"float32 only, got {x.dtype}")
        src = x if x.is_contiguous() else x.contiguous()
        dst = torch.empty(src.shape, dtype=src.dtype)
        width = src.shape[-1]
        workers = min(torch.get_num_threads(), os.cpu_count() or 1)
        KERNEL("forward", ctypes.c_void_p(src.data_ptr()), ctypes.c_void_p(dst.data_ptr()),
               ctypes.c_size_t(src.numel() // width), ctypes.c_size_t(width), ctypes.c_int(workers))
        return dst
