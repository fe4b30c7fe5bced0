import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_src = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/CUDAException.h>

template <int THREADS>
__device__ double block_sum(double v, double* shared) {
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffff, v, d);
    __syncthreads();                                  // the last readers of `shared` are done
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    double t = 0;
    #pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) t += shared[w];
    return t;
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS)
add_layernorm_kernel(const float4* __restrict__ x, const float4* __restrict__ r, const float4* __restrict__ w,
                     const float4* __restrict__ b, float4* __restrict__ y, int n4, double eps) {
    __shared__ double shared[THREADS / 32];
    const int64_t base = (int64_t)blockIdx.x * n4;
    const double n = 4.0 * n4;
    double s = 0;
    for (int i = threadIdx.x; i < n4; i += THREADS) {
        float4 a = x[base + i];
        const float4 c = r[base + i];
        a.x += c.x; a.y += c.y; a.z += c.z; a.w += c.w;
        y[base + i] = a;                              // parked in the output, read again by the same thread
        s += ((double)a.x + a.y) + ((double)a.z + a.w);
    }
    const double mean = block_sum<THREADS>(s, shared) / n;
    double q = 0;
    for (int i = threadIdx.x; i < n4; i += THREADS) {
        const float4 a = y[base + i];
        const double d0 = a.x - mean, d1 = a.y - mean, d2 = a.z - mean, d3 = a.w - mean;
        q += d0 * d0 + d1 * d1 + d2 * d2 + d3 * d3;
    }
    const double k = rsqrt(block_sum<THREADS>(q, shared) / n + eps);
    for (int i = threadIdx.x; i < n4; i += THREADS) {
        float4 a = y[base + i];
        const float4 g = w[i], h = b[i];
        a.x = (float)((a.x - mean) * k) * g.x + h.x;
        a.y = (float)((a.y - mean) * k) * g.y + h.y;
        a.z = (float)((a.z - mean) * k) * g.z + h.z;
        a.w = (float)((a.w - mean) * k) * g.w + h.w;
        y[base + i] = a;
    }
}

torch::Tensor add_layernorm(torch::Tensor x, torch::Tensor r, torch::Tensor w, torch::Tensor b, double eps) {
    TORCH_CHECK(x.is_cuda() && r.is_cuda(), "CUDA tensors please");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "float32 please");
    TORCH_CHECK(x.size(-1) % 4 == 0, "the row length must be a multiple of 4");
    x = x.contiguous();
    r = r.contiguous();
    for (const auto& t : {x, r, w, b})
        TORCH_CHECK(reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0, "16-byte alignment please");
    auto y = torch::empty_like(x);
    const int n4 = x.size(-1) / 4;
    const auto rows = x.numel() / x.size(-1);
    auto f4 = [](const torch::Tensor& t) { return reinterpret_cast<const float4*>(t.data_ptr<float>()); };
    add_layernorm_kernel<128><<<rows, 128, 0, c10::cuda::getCurrentCUDAStream()>>>(
        f4(x), f4(r), f4(w), f4(b), reinterpret_cast<float4*>(y.data_ptr<float>()), n4, eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

cpp_src = "torch::Tensor add_layernorm(torch::Tensor x, torch::Tensor r, torch::Tensor w, torch::Tensor b, double eps);"

ops = load_inline(name="add_layernorm_float4", cpp_sources=cpp_src, cuda_sources=cuda_src, functions=["add_layernorm"],
                  extra_cuda_cflags=["-O3"], verbose=False)


class ModelNew(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return ops.add_layernorm(x, residual, self.norm.weight, self.norm.bias, self.norm.eps)
