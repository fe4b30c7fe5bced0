import ctypes, subprocess, tempfile, textwrap
import torch
from torch import nn

PREFIX = "#include <immintrin.h>\nextern \"C\" __m512 _ZGVeN16v_expf(__m512);\n"
BODY = textwrap.dedent(r"""
    #include <vector>
    struct F {                                    // 16 floats
      __m512 v;
      F(__m512 x) : v(x) {}
      F(float x) : v(_mm512_set1_ps(x)) {}
      friend F operator+(F a, F b) { return _mm512_add_ps(a.v, b.v); }
      friend F operator-(F a, F b) { return _mm512_sub_ps(a.v, b.v); }
      friend F operator*(F a, F b) { return _mm512_mul_ps(a.v, b.v); }
      friend F operator/(F a, F b) { return _mm512_div_ps(a.v, b.v); }
      // torch.maximum: NaN on either side wins (maxps gives its second operand for a NaN)
      friend F fmax_(F a, F b) { return _mm512_mask_mov_ps(_mm512_max_ps(a.v, b.v), _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), a.v); }
      friend F exp_(F a) { return _ZGVeN16v_expf(a.v); }
    };
    extern "C" void wkv(const float* decay, const float* first, const float* k, const float* v, float* y, long B, long T, long C) {
      for (long b = 0; b < B; b++)
        for (long c = 0; c < C; c += 16) {
          const __mmask16 m = C - c >= 16 ? 0xffff : (1u << (C - c)) - 1;
          auto ld = [m](const float* p) { return F(_mm512_maskz_loadu_ps(m, p)); };
          const F w = F(0.f) - exp_(ld(decay + c)), u = ld(first + c);
          F aa(0.f), bb(0.f), pp(-1e38f);
          for (long t = 0; t < T; t++) {
            const long at = (b*T + t)*C + c;
            const F kt = ld(k + at), vt = ld(v + at);
            F ww = u + kt, p = fmax_(pp, ww), e1 = exp_(pp - p), e2 = exp_(ww - p);
            _mm512_mask_storeu_ps(y + at, m, ((e1*aa + e2*vt)/(e1*bb + e2)).v);
            ww = pp + w; p = fmax_(ww, kt); e1 = exp_(ww - p); e2 = exp_(kt - p);
            aa = e1*aa + e2*vt; bb = e1*bb + e2; pp = p;
          }
        }
    }
    """).replace("#include <vector>\n", "")


class ModelNew(nn.Module):
    _kernel = None

    @staticmethod
    def _build():
        d = tempfile.mkdtemp()
        with open(f"{d}/wkv.cpp", "w") as f:
            f.write(PREFIX + BODY)
        subprocess.run(["g++", "-std=c++17", "-O2", "-march=native", "-mavx512f", "-shared", "-fPIC", f"{d}/wkv.cpp", "-o", f"{d}/wkv.so", "-lmvec", "-lm"], check=True)
        fn = ctypes.CDLL(f"{d}/wkv.so").wkv
        fn.argtypes, fn.restype = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 3, None
        return fn

    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-3, 1, dim))
        self.first = nn.Parameter(torch.randn(dim) * 0.5)
        if ModelNew._kernel is None:
            ModelNew._kernel = staticmethod(self._build())

    def forward(self, k, v):
        if k.shape != v.shape or k.dim() != 3 or k.shape[-1] != self.decay.numel():
            raise ValueError("k and v: (batch, time, dim)")
        ts = [t.detach().contiguous() for t in (self.decay, self.first, k, v)]
        if any(t.dtype != torch.float32 for t in ts):
            raise TypeError("float32 only")
        y = torch.empty_like(ts[2])
        self._kernel(*[t.data_ptr() for t in ts], y.data_ptr(), *k.shape)
        return y
