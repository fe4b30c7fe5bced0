"""log(1 + |STFT|) by a register-tiled product straight on the overlapping frames; the bases are repacked when they change."""
import ctypes, os, subprocess, tempfile, weakref
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
#include <cstring>
typedef float vf __attribute__((vector_size(64)));
static inline vf load(const float* p) { vf v; std::memcpy(&v, p, 64); return v; }
// panels of 16 frequencies: for each sample 16 real and then 16 imaginary weights, zeros past the end
extern "C" void repack(const float* re, const float* im, float* p, long win, long nf) {
    for (long b = 0; b * 16 < nf; ++b) for (long t = 0; t < win; ++t, p += 32) for (long c = 0; c < 16; ++c) {
        const bool in = b * 16 + c < nf;
        p[c] = in ? re[t * nf + b * 16 + c] : 0.f;
        p[16 + c] = in ? im[t * nf + b * 16 + c] : 0.f;
    }
}
static inline float log1p_(float m) {          // m >= 0, infinite or NaN
    const float u = 1.f + m;
    unsigned b; std::memcpy(&b, &u, 4);
    const int e = (int)(b - 0x3f3504f3u) >> 23;
    b -= (unsigned)e << 23;
    float x; std::memcpy(&x, &b, 4);
    x -= 1.f;
    float y = 7.0376836292e-2f;
    y = y*x - 1.1514610310e-1f; y = y*x + 1.1676998740e-1f; y = y*x - 1.2420140846e-1f; y = y*x + 1.4249322787e-1f;
    y = y*x - 1.6668057665e-1f; y = y*x + 2.0000714765e-1f; y = y*x - 2.4999993993e-1f; y = y*x + 3.3333331174e-1f;
    y = y*x*x*x - 2.12194440e-4f * e - 0.5f*x*x + x + 0.693359375f * e + (m - (u - 1.f)) / u;    // what 1 + m rounded off
    return m < INFINITY ? y : m;
}
template <int R> static void frames(const float* x, long hop, const float* p, float* out, long win, long nf) {
    for (long b = 0; b * 16 < nf; ++b) {
        vf u[R] = {}, v[R] = {};
        for (long t = 0; t < win; ++t, p += 32) {
            const vf c = load(p), s = load(p + 16);
            #pragma GCC unroll 8
            for (int r = 0; r < R; ++r) { const float a = x[r * hop + t]; u[r] += c * a; v[r] += s * a; }
        }
        for (int r = 0; r < R; ++r) {
            float m[16];
            const vf q = u[r] * u[r] + v[r] * v[r];
            std::memcpy(m, &q, 64);
            #pragma omp simd
            for (int c = 0; c < 16; ++c) m[c] = log1p_(std::sqrt(m[c]));
            for (long c = 0; c < 16 && b * 16 + c < nf; ++c) out[r * nf + b * 16 + c] = m[c];
        }
    }
}
extern "C" void stft(const float* x, const float* p, float* out, long B, long len, long win, long hop, long nf) {
    const long n = (len - win) / hop + 1, step = 8, blocks = (n + step - 1) / step;
    #pragma omp parallel for num_threads(2) collapse(2)
    for (long b = 0; b < B; ++b) for (long k = 0; k < blocks; ++k) {
        long f = k * step; const long e = f + step < n ? f + step : n;
        if (e - f == step) { frames<8>(x + b * len + f * hop, hop, p, out + (b * n + f) * nf, win, nf); continue; }
        for (; f < e; ++f) frames<1>(x + b * len + f * hop, hop, p, out + (b * n + f) * nf, win, nf);
    }
}
"""

def load():
    fd, so = tempfile.mkstemp(suffix=".so")
    os.close(fd)
    subprocess.run(["g++", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-xc++", "-", "-o", so],
                   input=SRC.encode(), check=True)
    lib = ctypes.CDLL(so)
    os.remove(so)
    lib.repack.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2
    lib.stft.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 5
    lib.repack.restype = lib.stft.restype = None
    return lib

LIB = load()
PANELS = weakref.WeakKeyDictionary()      # instance -> (stamp, panels); gone with the instance

class ModelNew(nn.Module):
    def __init__(self, win, hop):
        super().__init__()
        self.win, self.hop = win, hop
        for name in ("re", "im"):
            self.register_buffer(name, torch.zeros(win, win // 2 + 1))
        t, f = torch.arange(win), torch.arange(win // 2 + 1)
        w, ang = torch.hann_window(win), 2 * torch.pi * t[:, None] * f[None] / win
        self.re, self.im = w[:, None] * torch.cos(ang), -w[:, None] * torch.sin(ang)

    def panels(self):
        stamp = [(b, b._version, b.data_ptr()) for b in (self.re, self.im)]
        hit = PANELS.get(self)
        if hit is None or any(a[0] is not b[0] or a[1:] != b[1:] for a, b in zip(hit[0], stamp)):
            win, nf = self.re.shape
            re, im = self.re.contiguous(), self.im.contiguous()
            p = torch.empty((nf + 15) // 16, win, 32)
            LIB.repack(re.data_ptr(), im.data_ptr(), p.data_ptr(), win, nf)
            PANELS[self] = hit = (stamp, p)
        return hit[1]

    def forward(self, x):
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] < self.win:
            raise ValueError("float32 (B, samples) expected")
        x, p, nf = x.contiguous(), self.panels(), self.re.shape[1]
        out = torch.empty(x.shape[0], (x.shape[1] - self.win) // self.hop + 1, nf)
        LIB.stft(x.data_ptr(), p.data_ptr(), out.data_ptr(), *x.shape, self.win, self.hop, nf)
        return out
