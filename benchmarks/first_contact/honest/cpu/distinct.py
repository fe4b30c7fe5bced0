# SELECT COUNT(DISTINCT key) GROUP BY row: open addressing, multiplicative hashing, generation stamps instead of clearing
import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

SRC = r"""
#include <cstdint>
#include <memory>
#include <vector>
struct Slot { int64_t key; uint32_t stamp; };
extern "C" void distinct(const int64_t* keys, int64_t* count, uint8_t* first, int64_t rows, int64_t n) {
    int bits = 4;
    while ((int64_t(1) << bits) < 2 * n) bits++;
    const uint64_t mask = (uint64_t(1) << bits) - 1;
    #pragma omp parallel
    {
        std::vector<Slot> table(mask + 1, Slot{0, 0});
        uint32_t stamp = 0;
        #pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            if (++stamp == 0) { table.assign(mask + 1, Slot{0, 0}); stamp = 1; }
            int64_t c = 0;
            for (int64_t i = 0; i < n; i++) {
                const int64_t k = keys[r * n + i];
                uint64_t h = ((uint64_t)k ^ ((uint64_t)k >> 32)) * 0x9E3779B97F4A7C15ull >> (64 - bits);
                for (;; h = (h + 1) & mask) {
                    Slot& s = table[h];
                    if (s.stamp != stamp) { s = Slot{k, stamp}; c++; first[r * n + i] = 1; break; }
                    if (s.key == k) { first[r * n + i] = 0; break; }
                }
            }
            count[r] = c;
        }
    }
}
"""
d = tempfile.mkdtemp()
open(os.path.join(d, "distinct.cpp"), "w").write(SRC)
subprocess.check_call(["g++", "-O2", "-fopenmp", "-shared", "-fPIC", "distinct.cpp", "-o", "distinct.so"], cwd=d)
_distinct = ctypes.CDLL(os.path.join(d, "distinct.so")).distinct
_distinct.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2


class ModelNew(nn.Module):
    def forward(self, keys):
        assert keys.dtype == torch.int64 and keys.dim() == 2
        keys = keys.contiguous()
        count = torch.empty(keys.shape[0], dtype=torch.int64)
        first = torch.empty(keys.shape, dtype=torch.bool)
        _distinct(keys.data_ptr(), count.data_ptr(), first.data_ptr(), *keys.shape)
        return count, first
