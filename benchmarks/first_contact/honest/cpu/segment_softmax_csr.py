"""Graph softmax: a counting sort of the edges by node at each call (into arrays that stay), then each node alone."""
import ctypes
import subprocess
import tempfile
import threading

import torch
import torch.nn as nn

CODE = r"""
#include <cmath>
#include <cstdint>
#include <limits>

static inline float exp_(float x) {
    x = x < -105.f ? -105.f : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = __builtin_fmaf(n, -0.693145752f, x);
    r = __builtin_fmaf(n, -1.42860677e-6f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.f;
    int k = (int)n, h = k >> 1;
    union { int32_t i; float f; } a, b;
    a.i = (h + 127) << 23; b.i = (k - h + 127) << 23;
    return p * a.f * b.f;
}

extern "C" int segments(const float* x, const int64_t* node, float* y, int32_t* start, int32_t* edge, int64_t nodes,
                        int64_t edges, int64_t heads, int threads) {
    for (int64_t i = 0; i <= nodes; ++i) start[i] = 0;
    for (int64_t e = 0; e < edges; ++e) {
        if ((uint64_t)node[e] >= (uint64_t)nodes) return 1;
        ++start[node[e] + 1];
    }
    for (int64_t i = 0; i < nodes; ++i) start[i + 1] += start[i];
    for (int64_t e = 0; e < edges; ++e) edge[start[node[e]]++] = (int32_t)e;      // start[i] becomes the end of i
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16)
    for (int64_t i = 0; i < nodes; ++i) {
        const int32_t from = i ? start[i - 1] : 0, to = start[i];
        for (int64_t h = 0; h < heads; ++h) {
            float top = -std::numeric_limits<float>::infinity(), sum = 0;
            for (int32_t k = from; k < to; ++k) {
                const float v = x[(int64_t)edge[k] * heads + h];
                top = v > top || v != v ? v : top;
            }
            for (int32_t k = from; k < to; ++k) {
                const int64_t at = (int64_t)edge[k] * heads + h;
                sum += y[at] = exp_(x[at] - top);
            }
            for (int32_t k = from; k < to; ++k) y[(int64_t)edge[k] * heads + h] /= sum;
        }
    }
    return 0;
}
"""
_so = tempfile.mkdtemp() + "/segments.so"
subprocess.run(["g++", "-O3", "-march=native", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", _so],
               input=CODE.encode(), check=True)
_segments = ctypes.CDLL(_so).segments


class Scratch(threading.local):                         # arrays of each Python thread, they only grow
    start = torch.empty(0, dtype=torch.int32)
    edge = torch.empty(0, dtype=torch.int32)

    def get(self, nodes, edges):
        if self.start.numel() <= nodes:
            self.start = torch.empty(nodes + 1, dtype=torch.int32)
        if self.edge.numel() < edges:
            self.edge = torch.empty(max(edges, 2 * self.edge.numel()), dtype=torch.int32)
        return self.start, self.edge


_scratch = Scratch()


class ModelNew(nn.Module):
    def __init__(self, nodes):
        super().__init__()
        self.nodes = nodes

    def forward(self, scores, node):
        scores, node = scores.contiguous(), node.contiguous()
        y = torch.empty_like(scores)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (scores, node, y, *_scratch.get(self.nodes, len(node)))]
        if _segments(*pointers, *map(ctypes.c_int64, (self.nodes, *scores.shape)), torch.get_num_threads()):
            raise RuntimeError("index out of bounds")
        return y
