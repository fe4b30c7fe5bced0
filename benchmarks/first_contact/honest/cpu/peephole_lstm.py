import ctypes, os, subprocess, tempfile, threading
import torch
import torch.nn as nn

# Transposed copies of the weights are kept between calls. They are valid only while every byte of the parameters
# equals the snapshot they were made from: memcmp in each call, so no version counter is trusted.
SRC = r"""
#include <cmath>
#include <cstring>
#include <vector>
struct State { std::vector<float> sw, su; std::vector<double> W, U; long I = 0, H = 0; };
extern "C" void* lstm_new() { return new State; }
extern "C" void lstm_free(void* s) { delete (State*)s; }
static void refresh(std::vector<float>& snap, std::vector<double>& packed, const float* p, long rows, long cols) {
    const size_t n = rows * cols;
    if (snap.size() == n && !std::memcmp(snap.data(), p, n * sizeof(float))) return;
    snap.assign(p, p + n);
    packed.resize(n);
    for (long r = 0; r < rows; r++) for (long c = 0; c < cols; c++) packed[c * rows + r] = p[r * cols + c];
}
static inline double sig(double x) { return 1.0 / (1.0 + std::exp(-x)); }
extern "C" void lstm_run(void* st, const float* x, const float* h0, const float* c0, const float* w, const float* u, const float* b,
                         const float* peep, float* out, float* hn, float* cn, long T, long B, long I, long H) {
    State& s = *(State*)st;
    if (s.I != I || s.H != H) { s.sw.clear(); s.su.clear(); s.I = I; s.H = H; }
    refresh(s.sw, s.W, w, 4 * H, I);
    refresh(s.su, s.U, u, 4 * H, H);
    const double *W = s.W.data(), *U = s.U.data();
    const long G = 4 * H;
    #pragma omp parallel
    {
        std::vector<double> gate(G), h(H), c(H);      // double state: a recurrence amplifies rounding
        #pragma omp for
        for (long n = 0; n < B; n++) {
            for (long j = 0; j < H; j++) { h[j] = h0[n * H + j]; c[j] = c0[n * H + j]; }
            for (long t = 0; t < T; t++) {
                double* g = gate.data();
                for (long j = 0; j < G; j++) g[j] = b[j];
                const float* xr = x + (t * B + n) * I;
                for (long k = 0; k < I; k++) { const double a = xr[k]; const double* r = W + k * G; for (long j = 0; j < G; j++) g[j] += a * r[j]; }
                for (long k = 0; k < H; k++) { const double a = h[k]; const double* r = U + k * G; for (long j = 0; j < G; j++) g[j] += a * r[j]; }
                for (long j = 0; j < H; j++) {
                    double cc = c[j];
                    double i = sig(g[j] + (double)peep[j] * cc), f = sig(g[H + j] + (double)peep[H + j] * cc);
                    cc = f * cc + i * std::tanh(g[2 * H + j]);
                    double o = sig(g[3 * H + j] + (double)peep[2 * H + j] * cc);
                    c[j] = cc;
                    h[j] = o * std::tanh(cc);
                    out[(t * B + n) * H + j] = (float)h[j];
                }
            }
            for (long j = 0; j < H; j++) { hn[n * H + j] = (float)h[j]; cn[n * H + j] = (float)c[j]; }
        }
    }
}
"""
_tmp = tempfile.mkdtemp()
with open(_tmp + "/l.cpp", "w") as _f:
    _f.write(SRC)
subprocess.check_call(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", _tmp + "/l.cpp", "-o", _tmp + "/l.so"])
_lib = ctypes.CDLL(_tmp + "/l.so")
_P = ctypes.c_void_p
_lib.lstm_new.restype = _P
_lib.lstm_free.argtypes = [_P]
_lib.lstm_run.argtypes = [_P] * 11 + [ctypes.c_long] * 4


class _Handle:
    def __init__(self):
        self.ptr, self.lock = _lib.lstm_new(), threading.Lock()

    def __deepcopy__(self, memo):
        return _Handle()

    def __del__(self):
        _lib.lstm_free(self.ptr)


class ModelNew(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        s = hidden ** -0.5
        self.w = nn.Parameter(torch.randn(4 * hidden, inputs) * s)
        self.u = nn.Parameter(torch.randn(4 * hidden, hidden) * s)
        self.b = nn.Parameter(torch.randn(4 * hidden) * s)
        self.peep = nn.Parameter(torch.randn(3, hidden) * s)
        self._handle = _Handle()

    def forward(self, x, h, c):
        assert x.dtype == h.dtype == c.dtype == torch.float32
        x, h, c = x.contiguous(), h.contiguous(), c.contiguous()
        w, u, b, p = (q.detach().contiguous() for q in (self.w, self.u, self.b, self.peep))
        t, n, i = x.shape
        hid = h.shape[1]
        out, hn, cn = x.new_empty(t, n, hid), torch.empty_like(h), torch.empty_like(c)
        with self._handle.lock:
            _lib.lstm_run(self._handle.ptr, *(q.data_ptr() for q in (x, h, c, w, u, b, p, out, hn, cn)), t, n, i, hid)
        return out, (hn, cn)
