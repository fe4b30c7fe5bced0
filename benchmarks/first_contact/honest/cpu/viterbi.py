import ctypes, pathlib, subprocess, tempfile
import torch
import torch.nn as nn

# Viterbi decoder the textbook way: one trellis per sequence, back pointers in 16 bit scratch.
code = r"""
#include <cstdint>
#include <vector>
#include <stdexcept>
extern "C" int viterbi(const float* emit, const float* start, const float* trans, float* value, int64_t* path,
                       int64_t B, int64_t T, int64_t S) {
    if (S > 32767 || T < 1) return 1;
    #pragma omp parallel
    {
        std::vector<float> cur(S), best(S);
        std::vector<int32_t> arg(S);
        std::vector<int16_t> back(T * S);
        #pragma omp for schedule(dynamic, 2)
        for (int64_t b = 0; b < B; b++) {
            const float* e = emit + b * T * S;
            for (int64_t s = 0; s < S; s++) cur[s] = start[s] + e[s];
            for (int64_t t = 1; t < T; t++) {
                for (int64_t j = 0; j < S; j++) { best[j] = cur[0] + trans[j]; arg[j] = 0; }
                for (int64_t i = 1; i < S; i++) {
                    const float c = cur[i];
                    const float* tr = trans + i * S;
                    float* bb = best.data(); int32_t* aa = arg.data();
                    #pragma omp simd
                    for (int64_t j = 0; j < S; j++) {
                        float v = c + tr[j];
                        // first maximum; the first NaN wins and stays
                        int take = (!(v <= bb[j])) & (bb[j] == bb[j]);
                        bb[j] = take ? v : bb[j];
                        aa[j] = take ? (int32_t)i : aa[j];
                    }
                }
                for (int64_t j = 0; j < S; j++) {
                    back[t * S + j] = (int16_t)arg[j];
                    cur[j] = best[j] + e[t * S + j];
                }
            }
            int64_t k = 0;
            for (int64_t s = 1; s < S; s++) if (cur[k] == cur[k] && !(cur[s] <= cur[k])) k = s;
            value[b] = cur[k];
            for (int64_t t = T - 1; t >= 0; t--) { path[b * T + t] = k; if (t) k = back[t * S + k]; }
        }
    }
    return 0;
}
"""
_dir = pathlib.Path(tempfile.mkdtemp())
(_dir / "v.cc").write_text(code)
subprocess.run(f"g++ -O3 -march=native -fopenmp -shared -fPIC {_dir}/v.cc -o {_dir}/v.so", shell=True, check=True)
_fn = ctypes.CDLL(str(_dir / "v.so")).viterbi
_fn.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3


class ModelNew(nn.Module):
    def __init__(self, states):
        super().__init__()
        self.start = nn.Parameter(torch.randn(states))
        self.trans = nn.Parameter(torch.randn(states, states))

    def forward(self, emit):
        emit = emit.contiguous()
        st, tr = self.start.detach().contiguous(), self.trans.detach().contiguous()
        assert emit.dtype == st.dtype == torch.float32
        b, t, s = emit.shape
        value, path = torch.empty(b), torch.empty(b, t, dtype=torch.int64)
        if _fn(emit.data_ptr(), st.data_ptr(), tr.data_ptr(), value.data_ptr(), path.data_ptr(), b, t, s):
            raise ValueError("shape not supported")
        return value, path
