"""GroupNorm + FiLM + ReLU.  Affine and FiLM fold into one multiply-add per channel (mean first subtracted)."""
import contextlib, ctypes, os, shutil, subprocess, tempfile
import torch
from torch import nn

CPP = r"""
#include <cmath>
#include <thread>
#include <atomic>
#include <vector>
namespace gn {
struct Args { const float *x, *w, *b, *sc, *sh; float* y; long N, C, S, G; double eps; };
void one(const Args& a, long n, long g) {
  const long cg = a.C / a.G, len = cg*a.S; const float* x = a.x + (n*a.C + g*cg)*a.S; float* y = a.y + (n*a.C + g*cg)*a.S;
  double s = 0, q = 0;
  for (long c = 0; c < cg; c++) { float t = 0; const float* p = x + c*a.S;
    #pragma omp simd reduction(+:t)
    for (long i = 0; i < a.S; i++) t += p[i];
    s += t; }
  const float m = (float)(s / len);
  for (long c = 0; c < cg; c++) { float t = 0; const float* p = x + c*a.S;
    #pragma omp simd reduction(+:t)
    for (long i = 0; i < a.S; i++) { float d = p[i] - m; t += d*d; }
    q += t; }
  const float r = (float)(1.0 / std::sqrt(q / len + a.eps));
  for (long c = 0; c < cg; c++) {
    const long ch = g*cg + c; const float f = 1.f + a.sc[n*a.C + ch], k = r*a.w[ch], o = a.b[ch], h = a.sh[n*a.C + ch];
    const float *p = x + c*a.S; float* z = y + c*a.S;
    for (long i = 0; i < a.S; i++) { float v = ((p[i] - m)*k + o)*f + h; z[i] = v < 0.f ? 0.f : v; }
  }
}
}
extern "C" void gn_film(const gn::Args* a, int threads) {
  std::atomic<long> next{0}; const long jobs = a->N*a->G;
  auto work = [&] { for (long j; (j = next.fetch_add(1)) < jobs;) gn::one(*a, j / a->G, j % a->G); };
  std::vector<std::thread> pool;
  for (int t = 1; t < threads; t++) pool.emplace_back(work);
  work();
  for (auto& t : pool) t.join();
}
"""


class Args(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in ("x", "w", "b", "sc", "sh", "y")] + \
               [(n, ctypes.c_long) for n in ("N", "C", "S", "G")] + [("eps", ctypes.c_double)]


@contextlib.contextmanager
def workdir():
    d = tempfile.mkdtemp()
    try:
        yield d
    finally:
        shutil.rmtree(d)


with workdir() as d:
    with open(os.path.join(d, "gn.cpp"), "w") as f:
        f.write(CPP)
    subprocess.run("g++ -std=c++17 -O3 -march=native -mprefer-vector-width=512 -fopenmp-simd -fno-trapping-math -pthread -fPIC -shared gn.cpp -o gn.so",
                   shell=True, cwd=d, check=True)
    gn_film = ctypes.CDLL(os.path.join(d, "gn.so")).gn_film
    gn_film.argtypes, gn_film.restype = [ctypes.POINTER(Args), ctypes.c_int], None


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.gn = nn.GroupNorm(groups, channels)

    def forward(self, x, scale, shift):
        n, c, h, w = x.shape
        if c != self.gn.num_channels or scale.shape != (n, c) or shift.shape != (n, c):
            raise ValueError("shape mismatch")
        t = [v.detach().contiguous() for v in (x, self.gn.weight, self.gn.bias, scale, shift)]
        if any(v.dtype != torch.float32 for v in t):
            raise TypeError("float32 required")
        y = torch.empty(n, c, h, w)
        a = Args(*(v.data_ptr() for v in t), y.data_ptr(), n, c, h * w, self.gn.num_groups, self.gn.eps)
        gn_film(ctypes.byref(a), 2 if x.numel() > 1 << 15 else 1)
        return y
