import ctypes, subprocess, os, tempfile, sysconfig
import torch
from torch import nn

# std::transform_inclusive_scan would do, were it not for the double accumulator; so std::accumulate's little brother by hand.
code = '''
#include <numeric>
#include <functional>
#include <thread>
#include <vector>
struct Kahanless {              // float in, double state
  double s = 0;
  float operator()(float v) { s += v; return (float)s; }
};
template <class It, class Out, class Op> Out scan_with(It a, It b, Out o, Op op) { while (a != b) *o++ = op(*a++); return o; }
extern "C" void cumsum(const float* x, float* y, long rows, long n, unsigned threads) {
  auto span = [=](long lo, long hi) { for (long r = lo; r < hi; ++r) scan_with(x + r * n, x + (r + 1) * n, y + r * n, Kahanless{}); };
  std::vector<std::thread> v;
  for (unsigned t = 1; t < threads; ++t) v.emplace_back(span, rows * t / threads, rows * (t + 1) / threads);
  span(0, rows / threads);
  for (auto& t : v) t.join();
}
'''

build_dir = os.path.join(tempfile.gettempdir(), "cumsum_std_" + str(os.getpid()))
os.makedirs(build_dir, exist_ok=True)
out = os.path.join(build_dir, "cumsum" + (sysconfig.get_config_var("SHLIB_SUFFIX") or ".so"))
if not os.path.isfile(out):
    subprocess.run(["g++", "-xc++", "-", "-std=c++17", "-O3", "-pthread", "-shared", "-fPIC", "-o", out], input=code, text=True, check=True)
so = ctypes.PyDLL(out) if False else ctypes.CDLL(out)


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        if self.dim not in (-1, x.dim() - 1):
            raise NotImplementedError("only the last dimension; transpose first")
        x = x.contiguous()
        y = torch.empty(x.size())
        rows = x.numel() // x.size(-1)
        so.cumsum(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_long(rows), ctypes.c_long(x.size(-1)),
                  ctypes.c_uint(max(1, min(torch.get_num_threads(), rows))))
        return y
