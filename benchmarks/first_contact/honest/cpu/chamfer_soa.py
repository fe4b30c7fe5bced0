"""Chamfer distance in both directions from one sweep over the pairs; points turned into planes per thread."""
import ctypes, subprocess, tempfile
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <memory>
static inline float least(float d, float m) { return (d < m || d != d) ? d : m; }    // a NaN stays
extern "C" void chamfer(const float* p, const float* q, float* a, float* b, float* c, long n, long m) {
    std::unique_ptr<float[]> planes(new float[3 * m]);
    float *X = planes.get(), *Y = X + m, *Z = Y + m;
    for (long j = 0; j < m; ++j) { X[j] = q[3*j]; Y[j] = q[3*j + 1]; Z[j] = q[3*j + 2]; b[j] = INFINITY; }
    double sa = 0, sb = 0;
    for (long i = 0; i < n; ++i) {
        const float x = p[3*i], y = p[3*i + 1], z = p[3*i + 2];
        float lane[16];
        for (int l = 0; l < 16; ++l) lane[l] = INFINITY;
        long j = 0;
        for (; j + 16 <= m; j += 16)
            for (int l = 0; l < 16; ++l) {
                const float u = x - X[j + l], v = y - Y[j + l], w = z - Z[j + l], d = u*u + v*v + w*w;
                b[j + l] = least(d, b[j + l]);
                lane[l] = least(d, lane[l]);
            }
        for (; j < m; ++j) {
            const float u = x - X[j], v = y - Y[j], w = z - Z[j], d = u*u + v*v + w*w;
            b[j] = least(d, b[j]);
            lane[0] = least(d, lane[0]);
        }
        float best = lane[0];
        for (int l = 1; l < 16; ++l) best = least(lane[l], best);
        a[i] = best; sa += best;
    }
    for (long j = 0; j < m; ++j) sb += b[j];
    *c = (float)(sa / n) + (float)(sb / m);
}
"""
with tempfile.NamedTemporaryFile(suffix=".so") as _so:
    subprocess.run(["g++", "-O3", "-march=native", "-fno-trapping-math", "-shared", "-fPIC", "-xc++", "-", "-o", _so.name],
                   input=SRC.encode(), check=True)
    _chamfer = ctypes.CDLL(_so.name).chamfer
_chamfer.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 2
_chamfer.restype = None

class ModelNew(nn.Module):
    def forward(self, p, q):
        for t in (p, q):
            if t.dtype != torch.float32 or t.dim() != 3 or t.shape[2] != 3:
                raise ValueError("float32 clouds (B, N, 3)")
        if p.shape[0] != q.shape[0] or 0 in p.shape or 0 in q.shape:
            raise ValueError("as many clouds on either side, none of them empty")
        p, q = p.contiguous(), q.contiguous()
        B, n, m = p.shape[0], p.shape[1], q.shape[1]
        a, b, c = torch.empty(B, n), torch.empty(B, m), torch.empty(B)
        ptr = [t.data_ptr() for t in (p, q, a, b, c)]
        step = [12 * n, 12 * m, 4 * n, 4 * m, 4]

        def part(rows):
            for i in rows:
                _chamfer(*(x + i * s for x, s in zip(ptr, step)), n, m)

        with ThreadPoolExecutor(max_workers=1) as pool:      # ctypes lets go of the GIL
            other = pool.submit(part, range(1, B, 2))
            part(range(0, B, 2))
            other.result()
        return a, b, c
