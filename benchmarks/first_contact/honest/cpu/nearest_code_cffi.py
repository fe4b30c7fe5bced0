"""Integer nearest neighbours through cffi; -fwrapv, because PyTorch's integers wrap too. No abandoning of a sum half way,
as wrapped sums may fall again."""
import os
import subprocess
import tempfile

import cffi
import torch
import torch.nn as nn

HEADER = """
void nearest(const int64_t *points, const int64_t *codes, int64_t *index, int64_t *distance, int64_t count,
             int64_t codes_count, int64_t width, int threads);
"""
BODY = "#include <stdint.h>\n" + HEADER + r"""
void nearest(const int64_t *points, const int64_t *codes, int64_t *index, int64_t *distance, int64_t count,
             int64_t codes_count, int64_t width, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < count; ++p) {
        int64_t best = 0, least = 0;
        for (int64_t c = 0; c < codes_count; ++c) {
            int64_t sum = 0;
            for (int64_t d = 0; d < width; ++d) {
                int64_t delta = points[p * width + d] - codes[c * width + d];
                int64_t sign = delta >> 63;
                sum += (delta ^ sign) - sign;
            }
            if (c == 0 || sum < least) { least = sum; best = c; }
        }
        index[p] = best;
        distance[p] = least;
    }
}
"""
ffi = cffi.FFI()
ffi.cdef(HEADER)
folder = tempfile.mkdtemp()
with open(os.path.join(folder, "nearest.c"), "w") as f:
    f.write(BODY)
subprocess.check_call(["gcc", "-O3", "-march=native", "-fwrapv", "-fopenmp", "-shared", "-fPIC", "nearest.c", "-o",
                       "libnearest.so"], cwd=folder)
C = ffi.dlopen(os.path.join(folder, "libnearest.so"))


def p(tensor):
    return ffi.cast("int64_t *", tensor.data_ptr())


class ModelNew(nn.Module):
    def forward(self, points, codes):
        points, codes = points.contiguous(), codes.contiguous()
        index = torch.empty(points.shape[0], dtype=torch.int64)
        distance = torch.empty_like(index)
        C.nearest(p(points), p(codes), p(index), p(distance), points.shape[0], codes.shape[0], points.shape[1],
                  torch.get_num_threads())
        return index, distance
