"""A B^T, computed the other way round: the output is a transposed view of what was written."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

C = r"""
void nt(const float *a, const float *b, float *yt, long B, long N, long M, long K, long sa, long ra) {
  #pragma omp parallel for collapse(2)
  for (long p = 0; p < B; p++)
    for (long j = 0; j < M; j++)
      for (long i = 0; i < N; i++) {
        const float *u = a + p * sa + i * ra, *v = b + (p * M + j) * K; double s = 0;
        for (long k = 0; k < K; k++) s += (double)u[k] * v[k];
        yt[(p * M + j) * N + i] = (float)(0.125 * s);
      }
}
"""
so = tempfile.mktemp(".so")
subprocess.run(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", so], input=C.encode(), check=True)
nt = ctypes.CDLL(so).nt
nt.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 6


class ModelNew(nn.Module):
    def forward(self, a, b):
        b = b.contiguous()
        out = torch.empty(a.shape[0], b.shape[1], a.shape[1])
        nt(a.data_ptr(), b.data_ptr(), out.data_ptr(), a.shape[0], a.shape[1], b.shape[1], a.shape[2], a.stride(0), a.stride(1))
        return out.mT
