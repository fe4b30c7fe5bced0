import ctypes
import functools
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

# Messages are sorted by segment with a counting sort of their numbers (stable), then each segment is summed by exactly one
# thread in the original order: no float atomics, so the answer never depends on the schedule.
CPP = r"""
#include <cstdint>
#include <vector>

extern "C" int segment_sum(const float* msg, const int64_t* seg, float* out, int64_t n, int64_t width, int64_t segments) {
    std::vector<int32_t> start(segments + 1, 0), order(n);
    for (int64_t i = 0; i < n; ++i) {
        if (seg[i] < 0 || seg[i] >= segments) return 1;
        ++start[seg[i] + 1];
    }
    for (int64_t s = 0; s < segments; ++s) start[s + 1] += start[s];
    {
        std::vector<int32_t> cursor(start.begin(), start.end() - 1);
        for (int64_t i = 0; i < n; ++i) order[cursor[seg[i]]++] = (int32_t)i;
    }
    #pragma omp parallel for schedule(guided)
    for (int64_t s = 0; s < segments; ++s) {
        float* o = out + s * width;
        for (int64_t d = 0; d < width; ++d) o[d] = 0.0f;
        for (int32_t k = start[s]; k < start[s + 1]; ++k) {
            const float* m = msg + (int64_t)order[k] * width;
            for (int64_t d = 0; d < width; ++d) o[d] += m[d];
        }
    }
    return 0;
}
"""


@functools.lru_cache(maxsize=1)
def segment_sum():
    path = os.path.join(tempfile.mkdtemp(), "segment_sum")
    with open(path + ".cpp", "w") as f:
        f.write(CPP)
    subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", path + ".cpp", "-o", path + ".so"], check=True)
    fn = ctypes.CDLL(path + ".so").segment_sum
    fn.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
    return fn


class ModelNew(nn.Module):
    def __init__(self, segments: int):
        super().__init__()
        self.segments = segments

    def forward(self, messages, segment):
        messages, segment = messages.contiguous(), segment.contiguous()
        n, width = messages.shape
        out = torch.empty(self.segments, width)
        if segment_sum()(messages.data_ptr(), segment.data_ptr(), out.data_ptr(), n, width, self.segments):
            raise IndexError("segment number out of range")
        return out
