import functools

import torch
import torch.nn as nn

# torch brings its own NVRTC wrapper since 2.9; no compiler on the machine is needed.
SOURCE = r"""
#define TILE 16
#define OB 8

extern "C" __global__ void __launch_bounds__(TILE * TILE)
conv3x3_relu(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b, float* __restrict__ y,
             int C, int O, int H, int W)
{
    __shared__ float in[TILE + 2][TILE + 2];
    __shared__ float k[OB][9];
    const int groups = (O + OB - 1) / OB;
    const int n = blockIdx.z / groups, o0 = blockIdx.z % groups * OB;
    const int tx = threadIdx.x, ty = threadIdx.y, tid = ty * TILE + tx;
    const int gx = blockIdx.x * TILE + tx, gy = blockIdx.y * TILE + ty;
    float acc[OB];
    #pragma unroll
    for (int o = 0; o < OB; ++o) acc[o] = 0.0f;

    for (int c = 0; c < C; ++c) {
        const float* plane = x + ((long long)n * C + c) * H * W;
        for (int i = tid; i < (TILE + 2) * (TILE + 2); i += TILE * TILE) {
            const int r = i / (TILE + 2), q = i % (TILE + 2);
            const int iy = (int)blockIdx.y * TILE + r - 1, ix = (int)blockIdx.x * TILE + q - 1;
            in[r][q] = (iy >= 0 && iy < H && ix >= 0 && ix < W) ? plane[iy * W + ix] : 0.0f;
        }
        if (tid < OB * 9) {
            const int o = tid / 9;
            k[o][tid % 9] = o0 + o < O ? w[((long long)(o0 + o) * C + c) * 9 + tid % 9] : 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int r = 0; r < 3; ++r)
            #pragma unroll
            for (int q = 0; q < 3; ++q) {
                const float v = in[ty + r][tx + q];
                #pragma unroll
                for (int o = 0; o < OB; ++o) acc[o] = fmaf(v, k[o][r * 3 + q], acc[o]);
            }
        __syncthreads();
    }
    if (gx < W && gy < H)
        for (int o = 0; o < OB && o0 + o < O; ++o) {
            const float v = acc[o] + b[o0 + o];
            y[(((long long)n * O + o0 + o) * H + gy) * W + gx] = v < 0.0f ? 0.0f : v;
        }
}
"""


@functools.lru_cache(maxsize=8)
def compiled(device_index):
    with torch.cuda.device(device_index):
        return torch.cuda._compile_kernel(SOURCE, "conv3x3_relu")


class ModelNew(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        o = self.conv.out_channels
        y = torch.empty(n, o, h, w, device=x.device, dtype=x.dtype)
        ceil = lambda a, b: -(-a // b)
        compiled(x.device.index)(grid=(ceil(w, 16), ceil(h, 16), n * ceil(o, 8)), block=(16, 16, 1),
                                 args=[x, self.conv.weight.detach(), self.conv.bias.detach(), y, c, o, h, w])
        return y
