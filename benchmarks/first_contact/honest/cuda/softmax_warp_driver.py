"""One warp per row. nvcc makes a cubin, the driver API (through ctypes) launches it."""
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile

import torch
import torch.nn as nn

CU = r"""
extern "C" __global__ void __launch_bounds__(256) softmax_warp(const float* __restrict__ x, float* __restrict__ y, long long rows, int cols)
{
    const int lane = threadIdx.x & 31;
    const long long row = (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (row >= rows) return;                      // whole warps leave together
    const float* in = x + row * cols;
    float* out = y + row * cols;

    float m = -INFINITY;
    for (int i = lane; i < cols; i += 32) m = fmaxf(m, in[i]);
    #pragma unroll
    for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));

    float s = 0.0f;
    for (int i = lane; i < cols; i += 32) { float e = expf(in[i] - m); out[i] = e; s += e; }
    #pragma unroll
    for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(0xffffffffu, s, d);

    for (int i = lane; i < cols; i += 32) out[i] = out[i] / s;
}
"""


class CudaError(RuntimeError):
    pass


@functools.lru_cache(None)
def driver():
    return ctypes.CDLL("libcuda.so.1")


def check(code):
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise CudaError(f"{code}: {(text.value or b'?').decode()}")


@functools.lru_cache(None)
def function(device: int):
    major, minor = torch.cuda.get_device_capability(device)
    nvcc = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/softmax.cu", "w") as f:
            f.write(CU)
        subprocess.run([nvcc, "-O3", f"-arch=sm_{major}{minor}", "-cubin", "-o", d + "/softmax.cubin", d + "/softmax.cu"], check=True)
        with open(d + "/softmax.cubin", "rb") as f:
            image = f.read()
    torch.cuda.synchronize(device)  # makes the primary context current
    module, fn = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver().cuModuleLoadData(ctypes.byref(module), image))
    check(driver().cuModuleGetFunction(ctypes.byref(fn), module, b"softmax_warp"))
    return fn


def launch(fn, grid, block, stream, *args):
    pointers = (ctypes.c_void_p * len(args))(*(ctypes.cast(ctypes.pointer(a), ctypes.c_void_p) for a in args))
    check(driver().cuLaunchKernel(fn, *grid, *block, 0, ctypes.c_void_p(stream), pointers, None))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        cols = x.shape[-1]
        rows = x.numel() // cols
        launch(function(x.device.index), ((rows + 7) // 8, 1, 1), (256, 1, 1), torch.cuda.current_stream(x.device).cuda_stream,
               ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_longlong(rows), ctypes.c_int(cols))
        return y
