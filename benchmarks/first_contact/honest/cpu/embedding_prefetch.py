"""Mean of gathered rows: the rows of the next bag are prefetched while this one is summed. Never touches the table
between calls, so there is nothing that could be stale."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP = r"""
#include <cstdint>
#include <cstddef>

template <int WIDTH>                                   // 0: any width
static void bags(const int64_t* index, const float* table, float* out, int64_t from, int64_t to, int64_t count,
                 int64_t length, int64_t runtime_width) {
    const int64_t width = WIDTH ? WIDTH : runtime_width;
    for (int64_t b = from; b < to; ++b) {
        float* __restrict o = out + b * width;
        for (int64_t d = 0; d < width; ++d) o[d] = 0;
        for (int64_t l = 0; l < length; ++l) {
            if (b + 1 < count) {
                const char* next = (const char*)(table + index[(b + 1) * length + l] * width);
                for (int64_t byte = 0; byte < width * 4; byte += 64) __builtin_prefetch(next + byte, 0, 3);
            }
            const float* row = table + index[b * length + l] * width;
            for (int64_t d = 0; d < width; ++d) o[d] += row[d];
        }
        for (int64_t d = 0; d < width; ++d) o[d] /= (float)length;
    }
}

// the first index out of range, or -1
extern "C" int64_t embed(const int64_t* index, const float* table, float* out, int64_t count, int64_t length,
                         int64_t width, int64_t rows, int threads) {
    for (int64_t i = 0; i < count * length; ++i)
        if ((uint64_t)index[i] >= (uint64_t)rows) return i;
#pragma omp parallel for num_threads(threads)
    for (int64_t chunk = 0; chunk < count; chunk += 32) {
        int64_t to = chunk + 32 < count ? chunk + 32 : count;
        switch (width) {
            case 64: bags<64>(index, table, out, chunk, to, count, length, width); break;
            case 96: bags<96>(index, table, out, chunk, to, count, length, width); break;
            default: bags<0>(index, table, out, chunk, to, count, length, width);
        }
    }
    return -1;
}
"""


class ModelNew(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        with tempfile.NamedTemporaryFile(suffix=".cpp", mode="w", delete=False) as file:
            file.write(CPP)
        so = file.name[:-4] + ".so"
        subprocess.run(["g++", "-O3", "-march=native", "-mprefer-vector-width=256", "-fopenmp", "-shared", "-fPIC",
                        file.name, "-o", so], check=True)
        self.native = [ctypes.CDLL(so).embed]          # a list, so that nn.Module leaves it alone
        self.native[0].restype = ctypes.c_int64

    def forward(self, index):
        index, table = index.contiguous(), self.table.weight.contiguous()
        count, length = index.shape
        out = torch.empty(count, table.shape[1])
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (index, table, out)]
        numbers = [ctypes.c_int64(n) for n in (count, length, table.shape[1], table.shape[0])]
        bad = self.native[0](*pointers, *numbers, ctypes.c_int(torch.get_num_threads()))
        if bad >= 0:
            raise IndexError("index out of range in self")
        return out
