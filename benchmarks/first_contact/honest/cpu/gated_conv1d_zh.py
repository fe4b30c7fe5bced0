# WaveNet 门控因果空洞卷积
# 思路：每个线程负责若干 (样本, 通道) 对；tanh 分支和 sigmoid 分支一起算，中间结果不写回内存。
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

源码 = r"""
#include <cmath>
#include <cstring>
#include <vector>

constexpr int 块 = 128;   // 每次处理的时间步数

extern "C" void gated_conv1d(const float* x, const float* w, const float* bias, float* y,
                             int batch, int ch, int taps, int dil, int T) {
    const int pad = (taps - 1) * dil;
    #pragma omp parallel
    {
        static thread_local std::vector<float> line;       // 左侧补零后的输入, 每个样本 ch 行
        int loaded = -1;
        const int P = T + pad;
        line.resize((size_t)ch * P);
        #pragma omp for schedule(static)
        for (int job = 0; job < batch * ch; ++job) {
            const int n = job / ch, o = job % ch;
            if (n != loaded) {
                for (int c = 0; c < ch; ++c) {
                    std::memset(&line[(size_t)c * P], 0, sizeof(float) * pad);
                    std::memcpy(&line[(size_t)c * P + pad], x + ((size_t)n * ch + c) * T, sizeof(float) * T);
                }
                loaded = n;
            }
            const float* wa = w + (size_t)o * ch * taps;
            const float* wb = w + (size_t)(o + ch) * ch * taps;
            for (int t0 = 0; t0 < T; t0 += 块) {
                const int len = T - t0 < 块 ? T - t0 : 块;
                float a[块] = {}, g[块] = {};
                for (int c = 0; c < ch; ++c)
                    for (int k = 0; k < taps; ++k) {
                        const float* s = &line[(size_t)c * P + t0 + k * dil];
                        const float u = wa[c * taps + k], v = wb[c * taps + k];
                        for (int i = 0; i < len; ++i) { a[i] += u * s[i]; g[i] += v * s[i]; }
                    }
                float* out = y + ((size_t)n * ch + o) * T + t0;
                for (int i = 0; i < len; ++i)
                    out[i] = std::tanh(a[i] + bias[o]) * (1.0f / (1.0f + std::exp(-(g[i] + bias[o + ch]))));
            }
        }
    }
}
"""


def 编译():
    目录 = tempfile.mkdtemp(prefix="wavenet_")
    文件 = os.path.join(目录, "gated.cpp")
    with open(文件, "w", encoding="utf8") as f:
        f.write(源码)
    subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", 文件, "-o", 目录 + "/gated.so"], check=True)
    return ctypes.CDLL(目录 + "/gated.so")


class ModelNew(nn.Module):
    库 = None

    def __init__(self, channels: int, kernel: int, dilation: int):
        super().__init__()
        self.pad = (kernel - 1) * dilation
        self.conv = nn.Conv1d(channels, 2 * channels, kernel, dilation=dilation)

    def forward(self, x):
        if ModelNew.库 is None:      # 第一次调用时编译
            ModelNew.库 = 编译()
        x = x.contiguous()
        n, c, t = x.shape
        y = torch.empty_like(x)
        p = ctypes.c_void_p
        ModelNew.库.gated_conv1d(p(x.data_ptr()), p(self.conv.weight.data_ptr()), p(self.conv.bias.data_ptr()), p(y.data_ptr()),
                                n, c, self.conv.kernel_size[0], self.conv.dilation[0], t)
        return y
