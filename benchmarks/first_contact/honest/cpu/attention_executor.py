import ctypes
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn

# ctypes releases the GIL, so Python threads are good enough to spread heads over cores.
SRC = b"""
#include <math.h>
void one_head(const float *q, const float *k, const float *v, float *o, float *work, long T, long D, float scale)
{
    float *kt = work, *row = work + T * D;                    /* keys transposed: D x T */
    for (long t = 0; t < T; t++) for (long d = 0; d < D; d++) kt[d * T + t] = k[t * D + d];
    for (long t = 0; t < T; t++) {
        for (long j = 0; j < T; j++) row[j] = 0;
        for (long d = 0; d < D; d++) {
            float a = q[t * D + d];
            for (long j = 0; j < T; j++) row[j] += a * kt[d * T + j];
        }
        float m = -INFINITY;
        for (long j = 0; j < T; j++) { row[j] *= scale; if (row[j] > m) m = row[j]; }
        double s = 0;
        for (long j = 0; j < T; j++) { row[j] = expf(row[j] - m); s += row[j]; }
        for (long j = 0; j < T; j++) row[j] = (float)(row[j] / s);
        float *out = o + t * D;
        for (long d = 0; d < D; d++) out[d] = 0;
        for (long j = 0; j < T; j++) for (long d = 0; d < D; d++) out[d] += row[j] * v[j * D + d];
    }
}
"""

with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as handle:
    pass
subprocess.run(["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-x", "c", "-o", handle.name, "-", "-lm"], input=SRC, check=True)
one_head = ctypes.CDLL(handle.name).one_head
one_head.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long, ctypes.c_long, ctypes.c_float]
one_head.restype = None


class ModelNew(nn.Module):
    def __init__(self, head_size: int):
        super().__init__()
        self.scale = head_size ** -0.5

    def forward(self, q, k, v):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        B, H, T, D = q.shape
        out = torch.empty_like(q)
        work = torch.empty(B * H, T * D + T)

        def job(i):
            offset = i * T * D * 4
            one_head(q.data_ptr() + offset, k.data_ptr() + offset, v.data_ptr() + offset, out.data_ptr() + offset,
                     work[i].data_ptr(), T, D, self.scale)

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for _ in pool.map(job, range(B * H)):
                pass
        return out
