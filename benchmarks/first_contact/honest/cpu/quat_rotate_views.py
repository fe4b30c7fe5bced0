"""Quaternions to rotation matrices and rotated points; follows any strides, so nothing is ever copied."""
import ctypes, subprocess, sys, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cmath>
namespace geo {
struct vec { float x, y, z; };
struct quat {
    float w, x, y, z;
    quat unit(float eps) const {
        const float n = std::sqrt(w * w + x * x + y * y + z * z) + eps;
        return {w / n, x / n, y / n, z / n};
    }
};
struct matrix {
    float m[9];
    explicit matrix(const quat& q)
        : m{1 - 2 * (q.y * q.y + q.z * q.z), 2 * (q.x * q.y - q.w * q.z), 2 * (q.x * q.z + q.w * q.y),
            2 * (q.x * q.y + q.w * q.z), 1 - 2 * (q.x * q.x + q.z * q.z), 2 * (q.y * q.z - q.w * q.x),
            2 * (q.x * q.z - q.w * q.y), 2 * (q.y * q.z + q.w * q.x), 1 - 2 * (q.x * q.x + q.y * q.y)} {}
    vec operator*(const vec& v) const {
        return {m[0] * v.x + m[1] * v.y + m[2] * v.z, m[3] * v.x + m[4] * v.y + m[5] * v.z, m[6] * v.x + m[7] * v.y + m[8] * v.z};
    }
};
}
extern "C" void rotate(const float* q, long qs0, long qs1, const float* p, long ps0, long ps1, float* out, float* R, long n, float eps) {
    for (long i = 0; i < n; ++i, q += qs0, p += ps0) {
        const geo::matrix m(geo::quat{q[0], q[qs1], q[2 * qs1], q[3 * qs1]}.unit(eps));
        const geo::vec v = m * geo::vec{p[0], p[ps1], p[2 * ps1]};
        out[3 * i] = v.x; out[3 * i + 1] = v.y; out[3 * i + 2] = v.z;
        for (int k = 0; k < 9; ++k) R[9 * i + k] = m.m[k];
    }
}
"""

def _native():
    me = sys.modules[__name__] if __name__ in sys.modules else None
    fn = getattr(me, "_rotate", None)
    if fn is None:
        with tempfile.TemporaryDirectory() as d:
            cmd = f"g++ -O3 -march=native -fno-math-errno -shared -fPIC -x c++ - -o {d}/quat.so"
            proc = subprocess.Popen(cmd.split(), stdin=subprocess.PIPE)
            proc.communicate(SRC.encode())
            if proc.returncode:
                raise RuntimeError("g++ failed")
            fn = ctypes.CDLL(f"{d}/quat.so").rotate
        P, L = ctypes.c_void_p, ctypes.c_long
        fn.argtypes, fn.restype = [P, L, L, P, L, L, P, P, L, ctypes.c_float], None
        globals()["_rotate"] = fn
    return fn

class ModelNew(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, q, p):
        n = q.shape[0]
        if q.dtype != torch.float32 or p.dtype != torch.float32 or q.shape != (n, 4) or p.shape != (n, 3):
            raise ValueError("float32 quaternions (n, 4) and points (n, 3)")
        out, R = torch.empty(n, 3), torch.empty(n, 3, 3)
        _native()(q.data_ptr(), *q.stride(), p.data_ptr(), *p.stride(), out.data_ptr(), R.data_ptr(), n, self.eps)
        return out, R
