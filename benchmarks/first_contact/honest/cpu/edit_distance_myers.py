"""Levenshtein distance of int64 sequences by Myers' bit-parallel columns, 64 rows to a word."""
import ctypes, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cstdint>
#include <vector>
#include <algorithm>
// symbols are ranked, so any int64 may occur; peq[rank] has the bits where the pattern has that symbol
static int64_t myers(const int64_t* a, int64_t n, const int64_t* b, int64_t m, std::vector<int64_t>& sym, std::vector<uint64_t>& peq,
                     std::vector<uint64_t>& vp, std::vector<uint64_t>& vn) {
    if (n == 0 || m == 0) return n + m;
    const int64_t words = (n + 63) / 64;
    sym.assign(a, a + n);
    std::sort(sym.begin(), sym.end());
    sym.erase(std::unique(sym.begin(), sym.end()), sym.end());
    peq.assign((sym.size() + 1) * words, 0);              // the last row: symbols that the pattern lacks
    for (int64_t i = 0; i < n; ++i)
        peq[(std::lower_bound(sym.begin(), sym.end(), a[i]) - sym.begin()) * words + i / 64] |= 1ull << (i % 64);
    vp.assign(words, ~0ull); vn.assign(words, 0);
    int64_t score = n;
    const uint64_t last = 1ull << ((n - 1) % 64);
    for (int64_t j = 0; j < m; ++j) {
        auto it = std::lower_bound(sym.begin(), sym.end(), b[j]);
        const uint64_t* eq = &peq[(it != sym.end() && *it == b[j] ? it - sym.begin() : (int64_t)sym.size()) * words];
        int hin = 1;                                      // the first row grows by one in each column
        for (int64_t w = 0; w < words; ++w) {
            const uint64_t P = vp[w], N = vn[w], E = eq[w] | (hin < 0), X = eq[w] | N;
            const uint64_t D = (((E & P) + P) ^ P) | E;
            uint64_t hp = N | ~(D | P), hn = P & D;
            const uint64_t top = w == words - 1 ? last : 1ull << 63;
            const int hout = (hp & top ? 1 : 0) - (hn & top ? 1 : 0);
            hp = hp << 1 | (hin > 0); hn = hn << 1 | (hin < 0);
            vp[w] = hn | ~(X | hp); vn[w] = hp & X;
            hin = hout;
        }
        score += hin;
    }
    return score;
}
extern "C" void distances(const int64_t* a, const int64_t* b, int64_t* out, int64_t B, int64_t n, int64_t m) {
    std::vector<int64_t> sym; std::vector<uint64_t> peq, vp, vn;
    for (int64_t r = 0; r < B; ++r) out[r] = myers(a + r * n, n, b + r * m, m, sym, peq, vp, vn);
}
"""

def native(_cell=[]):
    if not _cell:
        with tempfile.NamedTemporaryFile(suffix=".so") as so:
            subprocess.run(["g++", "-O2", "-march=native", "-shared", "-fPIC", "-x", "c++", "-", "-o", so.name], input=SRC.encode(), check=True)
            fn = ctypes.CDLL(so.name).distances
        fn.argtypes, fn.restype = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3, None
        _cell.append(fn)
    return _cell[0]

class ModelNew(nn.Module):
    def forward(self, a, b):
        match (a.dtype, b.dtype, a.dim(), b.dim()):
            case (torch.int64, torch.int64, 2, 2) if a.shape[0] == b.shape[0]:
                pass
            case other:
                raise TypeError(f"two int64 matrices with as many rows expected, got {other}")
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty(a.shape[0], dtype=torch.int64)
        native()(a.data_ptr(), b.data_ptr(), out.data_ptr(), a.shape[0], a.shape[1], b.shape[1])
        return out
