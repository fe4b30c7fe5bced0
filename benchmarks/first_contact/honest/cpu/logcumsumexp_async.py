"""float64 logcumsumexp; rows are handed to std::async, each keeps (max, sum) and rescales only when the max moves."""
import ctypes
import subprocess
import tempfile
from threading import Lock

import torch

_SRC = r"""
#include <cmath>
#include <future>
#include <vector>
static void row(const double* x, double* y, long n) {
  double m = -INFINITY, s = 0.0;
  for (long i = 0; i < n; ++i) {
    const double v = x[i];
    if (std::isnan(v) || std::isnan(m)) m = NAN;
    else if (v > m) { s = (m == -INFINITY ? 0.0 : s * std::exp(m - v)) + 1.0; m = v; }
    else if (m == INFINITY || m == -INFINITY) { if (v == m && m > 0) s += 1.0; }
    else s += std::exp(v - m);
    y[i] = std::isinf(m) ? m : m + std::log(s);
  }
}
extern "C" void lcse(const double* x, double* y, long rows, long n) {
  std::vector<std::future<void>> jobs;
  const long step = (rows + 3) / 4;
  for (long r = 0; r < rows; r += step)
    jobs.push_back(std::async(std::launch::async, [=] {
      for (long k = r; k < rows && k < r + step; ++k) row(x + k * n, y + k * n, n);
    }));
  for (auto& j : jobs) j.get();
}
"""
_lock = Lock()
_fn = None


def _get():
    global _fn
    with _lock:
        if _fn is None:
            so = tempfile.mktemp(suffix=".so")
            subprocess.run(["g++", "-O3", "-std=c++17", "-pthread", "-shared", "-fPIC", "-x", "c++", "-", "-o", so], input=_SRC.encode(), check=True)
            _fn = ctypes.CDLL(so).lcse
            _fn.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long)
            _fn.restype = None
    return _fn


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if x.dtype is not torch.float64 or x.dim() != 2:
            raise TypeError("made for float64 matrices")
        src = x.contiguous()
        dst = torch.empty_like(src)
        _get()(src.data_ptr(), dst.data_ptr(), *src.shape)
        return dst
