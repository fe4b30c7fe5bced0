"""Matrix NMS in two passes: column maxima of the IoU, then the smallest decay. Nothing of size n*n is kept.

The exponential is monotone, so that the minimum is taken of its argument and only n exponentials are left.
"""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP = r"""
#include <cmath>
#include <cstdint>
#include <vector>

// like torch: NaN wins
static inline float tmin(float a, float b) { return a != a ? a : (b < a || b != b) ? b : a; }
static inline float tmax(float a, float b) { return a != a ? a : (b > a || b != b) ? b : a; }
static inline float floor0(float a) { return a < 0.f ? 0.f : a; }   // NaN stays

struct Boxes {
    int64_t n;
    std::vector<float> x1, y1, x2, y2, area;
    Boxes(const float* b, int64_t n) : n(n), x1(n), y1(n), x2(n), y2(n), area(n) {
        for (int64_t i = 0; i < n; i++) {
            x1[i] = b[4 * i]; y1[i] = b[4 * i + 1]; x2[i] = b[4 * i + 2]; y2[i] = b[4 * i + 3];
            area[i] = (x2[i] - x1[i]) * (y2[i] - y1[i]);
        }
    }
    inline float iou(int64_t i, int64_t j) const {
        float w = floor0(tmin(x2[i], x2[j]) - tmax(x1[i], x1[j]));
        float h = floor0(tmin(y2[i], y2[j]) - tmax(y1[i], y1[j]));
        float inter = w * h;
        float u = area[i] + area[j] - inter;
        u = u < 1e-3f ? 1e-3f : u;
        float q = inter / u;
        return q > 1.f ? 1.f : q;
    }
};

extern "C" void matrix_nms(const float* boxes, const float* scores, float* out, int64_t n, float sigma) {
    Boxes b(boxes, n);
    std::vector<float> comp(n, 0.f);
#pragma omp parallel
    {
#pragma omp for schedule(guided)
        for (int64_t j = 0; j < n; j++) {        // amax over i; the triangle's zeros take part
            float m = 0.f;
            for (int64_t i = 0; i < j; i++) m = tmax(m, b.iou(i, j));
            comp[j] = m;
        }
        // arguments for i >= j are comp_i^2 - 0: their smallest is a suffix minimum
#pragma omp for schedule(guided)
        for (int64_t j = 0; j < n; j++) {
            float m = INFINITY;
            for (int64_t i = 0; i < j; i++) { float q = b.iou(i, j); m = tmin(m, (comp[i] * comp[i] - q * q) / sigma); }
            for (int64_t i = j; i < n; i++) m = tmin(m, comp[i] * comp[i] / sigma);
            out[j] = scores[j] * std::exp(m);
        }
    }
}
"""


class ModelNew(nn.Module):
    def __init__(self, sigma):
        super().__init__()
        self.sigma = float(sigma)
        d = tempfile.mkdtemp()
        src, so = os.path.join(d, "nms.cpp"), os.path.join(d, "nms.so")
        with open(src, "w") as f:
            f.write(CPP)
        subprocess.run(["g++", "-O3", "-march=native", "-ffp-contract=off", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", src, "-o", so], check=True)
        self.lib = ctypes.CDLL(so)
        self.lib.matrix_nms.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_float]

    def forward(self, boxes, scores):
        boxes, scores = boxes.contiguous(), scores.contiguous()
        out = torch.empty(scores.shape)
        self.lib.matrix_nms(boxes.data_ptr(), scores.data_ptr(), out.data_ptr(), scores.shape[0], self.sigma)
        return out
