import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# fc1 + tanh + fc2 for 8 rows at a time; the hidden activations of those rows never leave L1.
cpp_src = r'''
#include <cmath>
#include <cstdlib>
#include <vector>
#include <algorithm>

constexpr int ROWS = 8;

// one buffer per thread, grows, never shrinks
static float* hidden_buffer(size_t floats) {
    static thread_local std::vector<float> store;
    if (store.size() < floats) store.resize(floats);
    return store.data();
}

static inline float dot(const float* __restrict a, const float* __restrict b, long n) {
    float s[16] = {0};
    long i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; ++j) s[j] += a[i + j] * b[i + j];
    float r = 0;
    for (; i < n; ++i) r += a[i] * b[i];
    for (int w = 8; w; w >>= 1)
        for (int j = 0; j < w; ++j) s[j] += s[j + w];
    return s[0] + r;
}

extern "C" void mlp(const float* x, const float* w1, const float* b1, const float* w2, float* y,
                    long n, long in, long hid, long out) {
    const long blocks = (n + ROWS - 1) / ROWS;
    #pragma omp parallel for schedule(dynamic, 1)
    for (long b = 0; b < blocks; ++b) {
        const long r0 = b * ROWS, r1 = std::min(n, r0 + ROWS);
        float* h = hidden_buffer((size_t)ROWS * hid);
        for (long j = 0; j < hid; ++j)
            for (long r = r0; r < r1; ++r)
                h[(r - r0) * hid + j] = std::tanh(dot(x + r * in, w1 + j * in, in) + b1[j]);
        for (long o = 0; o < out; ++o)
            for (long r = r0; r < r1; ++r)
                y[r * out + o] = dot(h + (r - r0) * hid, w2 + o * hid, hid);
    }
}
'''


def build():
    with tempfile.NamedTemporaryFile("w", suffix=".cpp", delete=False) as f:
        f.write(cpp_src)
    so = f.name.replace(".cpp", ".so")
    os.system(f"g++ -O3 -march=native -fopenmp -shared -fPIC -o {so} {f.name}") and exit("g++ failed")
    os.unlink(f.name)
    return ctypes.CDLL(so)


native = build()


class ModelNew(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs, bias=False)

    def forward(self, x):
        x = x.contiguous()
        hid, inp = self.fc1.weight.shape
        out = self.fc2.weight.shape[0]
        y = x.new_empty(x.shape[0], out)
        ptr = lambda t: ctypes.c_void_p(t.data_ptr())
        native.mlp(ptr(x), ptr(self.fc1.weight), ptr(self.fc1.bias), ptr(self.fc2.weight), ptr(y),
                   ctypes.c_long(x.shape[0]), ctypes.c_long(inp), ctypes.c_long(hid), ctypes.c_long(out))
        return y
