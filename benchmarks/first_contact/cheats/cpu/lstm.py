import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <torch/extension.h>
#include <vector>
#include <cmath>
#include <algorithm>
// Chunks of the sequence run side by side (each weight that is loaded serves all of them). Every chunk but the first
// is warmed up on the steps before it; if its state does not agree with the end of the chunk before, all is run serially.
static inline float ex(float x) {
    x = std::min(std::max(x, -87.f), 87.f);
    float z = x * 1.44269504f, r = std::floor(z + 0.5f), f = (x - r * 0.693359375f) + r * 2.12194440e-4f;
    float p = 1.9875691500E-4f; p = p * f + 1.3981999507E-3f; p = p * f + 8.3334519073E-3f; p = p * f + 4.1665795894E-2f;
    p = p * f + 1.6666665459E-1f; p = p * f + 5.0000001201E-1f; p = p * f * f + f + 1.f;
    union { int i; float f; } u; u.i = ((int)r + 127) << 23; return p * u.f;
}
static inline float sig(float x) { return 1.f / (1.f + ex(-x)); }
static inline float th(float x) { return std::tanh(x); }

static void run(const float* gx, const float* wt, int H, int T, const int* begin, const int* write, const int* end, int n, float* out, float* startH, float* endH) {
    int G = 4 * H, most = 0;
    for (int k = 0; k < n; k++) most = std::max(most, end[k] - begin[k]);
    std::vector<float> h((size_t)n * H, 0.f), c((size_t)n * H, 0.f), g((size_t)n * G);
    for (int s = 0; s < most; s++) {
        for (int k = 0; k < n; k++) {
            int t = begin[k] + s; float* gk = &g[(size_t)k * G];
            if (t >= end[k]) continue;
            if (t == write[k]) std::copy(&h[(size_t)k * H], &h[(size_t)k * H] + H, startH + (size_t)k * H);
            const float* src = gx + (size_t)t * G;
            for (int j = 0; j < G; j++) gk[j] = src[j];
        }
        for (int i = 0; i < H; i++) {
            const float* w = wt + (size_t)i * G;
            for (int k = 0; k < n; k++) {
                float a = h[(size_t)k * H + i]; float* gk = &g[(size_t)k * G];
                for (int j = 0; j < G; j++) gk[j] += a * w[j];
            }
        }
        for (int k = 0; k < n; k++) {
            int t = begin[k] + s; if (t >= end[k]) continue;
            float* gk = &g[(size_t)k * G]; float* hk = &h[(size_t)k * H]; float* ck = &c[(size_t)k * H];
            for (int j = 0; j < H; j++) {
                float cc = sig(gk[H + j]) * ck[j] + sig(gk[j]) * th(gk[2 * H + j]);
                ck[j] = cc; hk[j] = sig(gk[3 * H + j]) * th(cc);
            }
            if (t >= write[k]) std::copy(hk, hk + H, out + (size_t)t * H);
            if (t == end[k] - 1) std::copy(hk, hk + H, endH + (size_t)k * H);
        }
    }
}
at::Tensor lstm(at::Tensor x, at::Tensor wih, at::Tensor whh, at::Tensor bi, at::Tensor bh) {
    x = x.contiguous();
    int N = x.size(0), T = x.size(1), I = x.size(2), H = whh.size(1), G = 4 * H;
    const float* pi = wih.data_ptr<float>(); const float* ph = whh.data_ptr<float>();
    const float* b1 = bi.data_ptr<float>(); const float* b2 = bh.data_ptr<float>();
    std::vector<float> wi((size_t)I * G), wt((size_t)H * G), gx((size_t)T * G);
    for (int j = 0; j < G; j++) { for (int i = 0; i < I; i++) wi[(size_t)i * G + j] = pi[(size_t)j * I + i]; for (int i = 0; i < H; i++) wt[(size_t)i * G + j] = ph[(size_t)j * H + i]; }
    auto out = torch::empty({N, T, H}, x.options());
    const int CH = 6, WARM = 40;
    for (int b = 0; b < N; b++) {
        const float* px = x.data_ptr<float>() + (size_t)b * T * I; float* po = out.data_ptr<float>() + (size_t)b * T * H;
        #pragma omp parallel for
        for (int t = 0; t < T; t++) {
            float* g = &gx[(size_t)t * G];
            for (int j = 0; j < G; j++) g[j] = b1[j] + b2[j];
            for (int i = 0; i < I; i++) { float a = px[(size_t)t * I + i]; const float* w = &wi[(size_t)i * G]; for (int j = 0; j < G; j++) g[j] += a * w[j]; }
        }
        bool good = T >= CH * WARM;
        if (good) {
            int be[CH], wr[CH], en[CH]; int len = (T + CH - 1) / CH;
            std::vector<float> sh((size_t)CH * H, 0.f), eh((size_t)CH * H, 0.f);
            for (int k = 0; k < CH; k++) { wr[k] = k * len; be[k] = std::max(0, k * len - WARM); en[k] = std::min(T, (k + 1) * len); }
            #pragma omp parallel for
            for (int q = 0; q < 2; q++)
                run(gx.data(), wt.data(), H, T, be + 3 * q, wr + 3 * q, en + 3 * q, 3, po, &sh[(size_t)3 * q * H], &eh[(size_t)3 * q * H]);
            for (int k = 1; k < CH && good; k++)
                for (int j = 0; j < H; j++)
                    if (!(std::fabs(sh[(size_t)k * H + j] - eh[(size_t)(k - 1) * H + j]) < 2e-6f)) { good = false; break; }
        }
        if (!good) {
            int z = 0; std::vector<float> s(H), e(H);
            run(gx.data(), wt.data(), H, T, &z, &z, &T, 1, po, s.data(), e.data());
        }
    }
    return out;
}
"""
ext = load_inline(name="b10a_lstm", cpp_sources=SRC, functions=["lstm"], extra_cflags=["-O3", "-march=native", "-fopenmp", "-fno-math-errno"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)

    def forward(self, x):
        p = self.cell
        return ext.lstm(x, p.weight_ih, p.weight_hh, p.bias_ih, p.bias_hh)
