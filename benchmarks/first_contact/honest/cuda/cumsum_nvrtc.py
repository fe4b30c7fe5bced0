"""Row-wise inclusive scan: a block walks along its row tile by tile and carries the total on. Compiled by NVRTC via ctypes."""
import ctypes

import torch
import torch.nn as nn

THREADS, ITEMS = 256, 4

SRC = r"""
extern "C" __global__ void scan_rows(const float* __restrict__ x, float* __restrict__ y, int n)
{
    const int T = %(threads)d, V = %(items)d;
    __shared__ double warp_total[T / 32];
    __shared__ double carry_shared;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float* in = x + (long long)blockIdx.x * n;
    float* out = y + (long long)blockIdx.x * n;
    if (threadIdx.x == 0) carry_shared = 0.0;
    __syncthreads();

    for (int base = 0; base < n; base += T * V) {
        double v[V], run = 0.0;
        const int first = base + threadIdx.x * V;
        #pragma unroll
        for (int k = 0; k < V; ++k) { run += first + k < n ? (double)in[first + k] : 0.0; v[k] = run; }
        double incl = run;
        #pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            double o = __shfl_up_sync(0xffffffffu, incl, d);
            if (lane >= d) incl += o;
        }
        double excl = __shfl_up_sync(0xffffffffu, incl, 1);
        if (lane == 0) excl = 0.0;
        if (lane == 31) warp_total[warp] = incl;
        __syncthreads();
        const double carry = carry_shared;
        double before = carry;
        for (int w = 0; w < warp; ++w) before += warp_total[w];
        #pragma unroll
        for (int k = 0; k < V; ++k) if (first + k < n) out[first + k] = (float)(before + excl + v[k]);
        __syncthreads();                       // everybody has read the carry and the totals
        if (threadIdx.x == T - 1) carry_shared = before + incl;
        __syncthreads();
    }
}
""" % {"threads": THREADS, "items": ITEMS}


def _nvrtc():
    for name in ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ImportError("NVRTC was not found")


def _ptx(source: str, arch: str) -> bytes:
    rtc = _nvrtc()
    prog = ctypes.c_void_p()
    assert rtc.nvrtcCreateProgram(ctypes.byref(prog), source.encode(), b"scan.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={arch}".encode(), b"--std=c++17")
    status = rtc.nvrtcCompileProgram(prog, 2, options)
    size = ctypes.c_size_t()
    if status != 0:
        rtc.nvrtcGetProgramLogSize(prog, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        rtc.nvrtcGetProgramLog(prog, text)
        raise RuntimeError(text.value.decode())
    rtc.nvrtcGetPTXSize(prog, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    rtc.nvrtcGetPTX(prog, ptx)
    rtc.nvrtcDestroyProgram(ctypes.byref(prog))
    return ptx.raw


class _Scan:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.functions = {}

    def get(self, device):
        if device.index not in self.functions:
            torch.cuda.current_blas_handle()  # any call that makes sure of a context will do
            major, minor = torch.cuda.get_device_capability(device)
            module, fn = ctypes.c_void_p(), ctypes.c_void_p()
            ptx = _ptx(SRC, f"compute_{major}{minor}")
            self._ok(self.cuda.cuModuleLoadData(ctypes.byref(module), ptx))
            self._ok(self.cuda.cuModuleGetFunction(ctypes.byref(fn), module, b"scan_rows"))
            self.functions[device.index] = fn
        return self.functions[device.index]

    @staticmethod
    def _ok(result):
        if result != 0:
            raise RuntimeError(f"CUDA driver error {result}")

    def __call__(self, x, y, rows, n):
        px, py, pn = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int(n)
        args = (ctypes.c_void_p * 3)(*[ctypes.addressof(v) for v in (px, py, pn)])
        self._ok(self.cuda.cuLaunchKernel(self.get(x.device), rows, 1, 1, THREADS, 1, 1, 0,
                                          ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), args, None))


_scan = None


class ModelNew(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        global _scan
        if _scan is None:
            _scan = _Scan()
        t = x.transpose(self.dim, -1).contiguous()
        y = torch.empty_like(t)
        n = t.shape[-1]
        _scan(t, y, t.numel() // n, n)
        return y.transpose(self.dim, -1)
