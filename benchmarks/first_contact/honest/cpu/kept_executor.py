"""Row softmax on a thread pool that the module keeps; ctypes lets go of the GIL."""
import concurrent.futures
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

source = b"""
#include <math.h>
void rows(const float *x, float *y, long n, long c) {
  for (long i = 0; i < n; i++, x += c, y += c) {
    float m = -INFINITY; double s = 0;
    for (long j = 0; j < c; j++) m = fmaxf(m, x[j]);
    for (long j = 0; j < c; j++) { y[j] = expf(x[j] - m); s += y[j]; }
    for (long j = 0; j < c; j++) y[j] = (float)(y[j] / s);
  }
}
"""
fd, so = tempfile.mkstemp(".so"); os.close(fd)
subprocess.run(["gcc", "-O2", "-march=native", "-shared", "-fPIC", "-x", "c", "-", "-o", so, "-lm"], input=source, check=True)
rows = ctypes.CDLL(so).rows
rows.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.workers = max(1, torch.get_num_threads())
        self.pool = concurrent.futures.ThreadPoolExecutor(self.workers, thread_name_prefix="rows")

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n, c = x.shape
        step = -(-n // self.workers)
        jobs = [self.pool.submit(rows, x.data_ptr() + 4 * c * i, y.data_ptr() + 4 * c * i, min(step, n - i), c) for i in range(0, n, step)]
        for job in concurrent.futures.as_completed(jobs):
            job.result()
        return y
