import torch
import torch.nn as nn

KERNEL = """
extern "C" __global__ void dequant(const signed char* __restrict__ q, const float* __restrict__ scale, const float* __restrict__ zero,
                                   float* __restrict__ y, int rows, int n)
{
    const int r = blockIdx.y;
    const float s = scale[r], z = zero[r];
    const signed char* in = q + (long long)r * n;
    float* out = y + (long long)r * n;
    const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (n % 4 == 0 && i + 3 < n) {
        const char4 c = *reinterpret_cast<const char4*>(in + i);
        float4 f;
        f.x = ((float)c.x - z) * s;
        f.y = ((float)c.y - z) * s;
        f.z = ((float)c.z - z) * s;
        f.w = ((float)c.w - z) * s;
        *reinterpret_cast<float4*>(out + i) = f;
    } else {
        for (int j = i; j < n && j < i + 4; ++j) out[j] = ((float)in[j] - z) * s;
    }
}
"""


class ModelNew(nn.Module):
    kernels = {}

    def __init__(self, rows: int):
        super().__init__()
        self.register_buffer("scale", torch.full((rows, 1), 0.02))
        self.register_buffer("zero", torch.full((rows, 1), 3.0))

    def forward(self, q):
        assert q.dtype == torch.int8 and q.dim() == 2
        q = q.clone(memory_format=torch.contiguous_format) if not q.is_contiguous() or q.data_ptr() % 4 else q
        if q.device not in self.kernels:
            self.kernels[q.device] = torch.cuda._compile_kernel(KERNEL, "dequant")
        rows, n = q.shape
        y = torch.empty(rows, n, dtype=torch.float32, device=q.device)
        self.kernels[q.device](grid=((n + 1023) // 1024, rows, 1), block=(256, 1, 1), args=[q, self.scale, self.zero, y, rows, n])
        return y
