import ctypes, functools, subprocess, tempfile, torch

CU = """
struct Best { float v; int at; };

// NaN is above everything; among equals the first one wins.
__device__ __forceinline__ Best pick(Best a, Best b) {
  bool an = a.v != a.v, bn = b.v != b.v;
  bool first = a.at < b.at;
  if (an || bn) return an && bn ? (first ? a : b) : an ? a : b;
  return a.v > b.v || (a.v == b.v && first) ? a : b;
}

extern "C" __global__ void row_max(const float *x, float *values, long long *indices, int n) {
  __shared__ float sv[32];
  __shared__ int si[32];
  const float *row = x + (long long)blockIdx.x * n;
  Best m = {-INFINITY, 0x7fffffff};
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = pick(m, Best{row[i], i});
  for (int d = 16; d; d >>= 1) {
    Best o = {__shfl_down_sync(~0u, m.v, d), __shfl_down_sync(~0u, m.at, d)};
    m = pick(m, o);
  }
  if (threadIdx.x % 32 == 0) { sv[threadIdx.x / 32] = m.v; si[threadIdx.x / 32] = m.at; }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < blockDim.x / 32; w++) m = pick(m, Best{sv[w], si[w]});
    values[blockIdx.x] = m.v;
    indices[blockIdx.x] = m.at;
  }
}
"""


@functools.cache
def kernel():
    cap = "%d%d" % torch.cuda.get_device_capability()
    with tempfile.NamedTemporaryFile("w", suffix=".cu") as f, tempfile.NamedTemporaryFile(suffix=".cubin") as g:
        f.write(CU)
        f.flush()
        subprocess.check_call(["nvcc", "-cubin", "-arch", "sm_" + cap, f.name, "-o", g.name])
        image = open(g.name, "rb").read()
    cu = ctypes.CDLL("libcuda.so.1")
    mod, fn = ctypes.c_void_p(), ctypes.c_void_p()
    torch.cuda.synchronize()
    assert cu.cuModuleLoadData(ctypes.byref(mod), image) == 0
    assert cu.cuModuleGetFunction(ctypes.byref(fn), mod, b"row_max") == 0
    return cu, fn


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        values = torch.empty(x.shape[:-1], device=x.device)
        indices = torch.empty(x.shape[:-1], device=x.device, dtype=torch.int64)
        cu, fn = kernel()
        args = [ctypes.c_void_p(t.data_ptr()) for t in (x, values, indices)] + [ctypes.c_int(x.shape[-1])]
        raw = (ctypes.c_void_p * 4)(*map(ctypes.addressof, args))
        assert cu.cuLaunchKernel(fn, values.numel(), 1, 1, 128, 1, 1, 0, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), raw, None) == 0
        return values, indices
