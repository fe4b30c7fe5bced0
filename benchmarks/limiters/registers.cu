// Kernels with too many live values, or with too few warps for the device.
#if defined(SPILLS)  // SPILLS live values and no room for them
extern "C" __global__ void __launch_bounds__(1024, 2) probe(const float* a, const float* b, float* c, int n, int m) {
    float live[SPILLS];
    int t = blockIdx.x * 1024 + threadIdx.x;
#pragma unroll
    for (int k = 0; k < SPILLS; ++k) live[k] = a[(t + k * 1024) & (n - 1)];
    for (int i = 0; i < m; ++i) {
#pragma unroll
        for (int k = 0; k < SPILLS; ++k) live[k] = live[k] * 0.5f + live[(k + 7) % SPILLS];
    }
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < SPILLS; ++k) sum += live[k];
    c[t] = sum;
}
#elif defined(FEW)  // long chains of arithmetic, and hardly any warps to hide their latency
extern "C" __global__ void __launch_bounds__(FEW) probe(const float* a, const float* b, float* c, int n, int m) {
    float x = threadIdx.x * 1e-3f, y = x + 0.5f;
    for (int i = 0; i < m; ++i) {
        x = x * y + 0.5f;
        y = y * 0.99f + x;
    }
    c[blockIdx.x * FEW + threadIdx.x] = x + y;
}
#elif defined(ROOMY)  // ROOMY threads a block take all shared memory, so few warps wait for memory at a time
extern "C" __global__ void __launch_bounds__(ROOMY) probe(const float* __restrict__ a, const float* __restrict__ b,
                                                           float* __restrict__ c, int n, int m) {
    extern __shared__ float held[];
    held[threadIdx.x] = m;
    int all = gridDim.x * ROOMY;
    for (int i = blockIdx.x * ROOMY + threadIdx.x; i < n; i += all) c[i] = a[i] * 2.0f + held[threadIdx.x];
}
#elif defined(TINY)  // next to nothing, many times over
extern "C" __global__ void __launch_bounds__(128) probe(const float* a, const float* b, float* c, int n, int m) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) c[i] = a[i] * TINY + b[i];
}
#endif
