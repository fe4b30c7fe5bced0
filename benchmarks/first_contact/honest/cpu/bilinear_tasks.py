"""y[b,o] = a_b' W_o b_b + c_o: recursive split of the (batch x outputs) square into OpenMP tasks, leaves are templates."""
import ctypes, os, subprocess, tempfile
import torch

CPP = r"""
#include <cstddef>
struct Job { const float *a, *w, *b, *bias; float* y; long I, J, O; };

template <int BATCH> static void leaf(const Job& q, long b0, long o) {
  float acc[BATCH];
  for (int u = 0; u < BATCH; ++u) acc[u] = 0;
  for (long i = 0; i < q.I; ++i) {
    const float* w = q.w + (o * q.I + i) * q.J;
    for (int u = 0; u < BATCH; ++u) {
      const float* v = q.b + (b0 + u) * q.J;
      float s = 0;
      #pragma omp simd reduction(+:s)
      for (long j = 0; j < q.J; ++j) s += w[j] * v[j];
      acc[u] += s * q.a[(b0 + u) * q.I + i];
    }
  }
  for (int u = 0; u < BATCH; ++u) q.y[(b0 + u) * q.O + o] = acc[u] + q.bias[o];
}

static void split(const Job& q, long b0, long b1, long o0, long o1) {
  if (b1 - b0 > 16) {
    const long m = b0 + (b1 - b0) / 8 * 4;
    #pragma omp task shared(q)
    split(q, b0, m, o0, o1);
    split(q, m, b1, o0, o1);
    #pragma omp taskwait
    return;
  }
  if (o1 - o0 > 4) {
    const long m = (o0 + o1) / 2;
    #pragma omp task shared(q)
    split(q, b0, b1, o0, m);
    split(q, b0, b1, m, o1);
    #pragma omp taskwait
    return;
  }
  for (long o = o0; o < o1; ++o) {
    long b = b0;
    for (; b + 4 <= b1; b += 4) leaf<4>(q, b, o);
    switch (b1 - b) { case 3: leaf<3>(q, b, o); break; case 2: leaf<2>(q, b, o); break; case 1: leaf<1>(q, b, o); }
  }
}

extern "C" void bilinear(const Job* q, long B) {
  #pragma omp parallel
  #pragma omp single
  split(*q, 0, B, 0, q->O);
}
"""


class Job(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in ("a", "w", "b", "bias", "y")] + [(n, ctypes.c_long) for n in "IJO"]


def _lib(_found=[]):
    if not _found:
        d = tempfile.mkdtemp()
        with open(os.path.join(d, "b.cpp"), "w") as f:
            f.write(CPP)
        subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "b.cpp", "-o", "b.so"], cwd=d)
        _found.append(ctypes.CDLL(os.path.join(d, "b.so")))
    return _found[0]


class ModelNew(torch.nn.Module):
    def __init__(self, left, right, out):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(out, left, right) / (left * right) ** 0.5)
        self.bias = torch.nn.Parameter(torch.zeros(out))

    def forward(self, a, b):
        O, I, J = self.weight.shape
        a, b = a.contiguous(), b.contiguous()
        y = a.new_empty(a.shape[0], O)
        job = Job(a.data_ptr(), self.weight.data_ptr(), b.data_ptr(), self.bias.data_ptr(), y.data_ptr(), I, J, O)
        _lib().bilinear(ctypes.byref(job), ctypes.c_long(a.shape[0]))
        return y
