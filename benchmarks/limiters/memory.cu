// Kernels that wait for global memory, each for one reason. CASE chooses it, STEP is its number.
#define KERNEL extern "C" __global__ void __launch_bounds__(256) probe

#if defined(STREAM)  // whole vectors, neighbours beside each other: as fast as memory
KERNEL(const float4* __restrict__ a, const float4* __restrict__ b, float4* __restrict__ c, int n, int m) {
    int all = gridDim.x * 256;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n / 4; i += all) {
        float4 x = a[i];
#if STREAM > 1
        float4 y = b[i];
        x.x += y.x; x.y += y.y; x.z += y.z; x.w += y.w;
#endif
        c[i] = x;
    }
}
#elif defined(STREAM_SUM)  // reads only
KERNEL(const float4* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int m) {
    float sum = 0.0f;
    int all = gridDim.x * 256;
#pragma unroll 4
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n / 4; i += all) {
        float4 x = a[i];
        sum += (x.x + x.y) + (x.z + x.w);
    }
    c[blockIdx.x * 256 + threadIdx.x] = sum;
}
#elif defined(STREAM_WRITE)  // writes only
KERNEL(const float* a, const float* b, float4* __restrict__ c, int n, int m) {
    int all = gridDim.x * 256;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n / 4; i += all) c[i] = make_float4(i, m, i, m);
}
#elif defined(STRIDED)  // neighbours lie STRIDED floats from each other
KERNEL(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int m) {
    int count = n / STRIDED, all = gridDim.x * 256;
    for (int turn = 0; turn < m; ++turn)
        for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += all) c[i] = a[(size_t)i * STRIDED] + turn;
}
#elif defined(STRIDED_WRITE)
KERNEL(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int m) {
    int count = n / STRIDED_WRITE, all = gridDim.x * 256;
    for (int turn = 0; turn < m; ++turn)
        for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += all) c[(size_t)i * STRIDED_WRITE] = a[i] + turn;
}
#elif defined(ROWS)  // each thread walks a row of m numbers
KERNEL(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int m) {
    int row = blockIdx.x * 256 + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < m; ++k) sum += a[(size_t)row * m + k];
    c[row] = sum;
}
#elif defined(CHASE)  // each address comes out of the load before it; CHASE chains a thread
KERNEL(const int* __restrict__ a, const float* b, int* __restrict__ c, int n, int m) {
    int at[CHASE];
    for (int k = 0; k < CHASE; ++k) at[k] = (blockIdx.x * 256 + threadIdx.x) / 32 * 32 + k * 4096;
    for (int i = 0; i < m; ++i)
#pragma unroll
        for (int k = 0; k < CHASE; ++k) at[k] = a[at[k] & (n - 1)];
    int sum = 0;
    for (int k = 0; k < CHASE; ++k) sum += at[k];
    c[blockIdx.x * 256 + threadIdx.x] = sum;
}
#elif defined(ATOMIC)  // all threads add to ATOMIC places
KERNEL(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int m) {
    int all = gridDim.x * 256;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += all) {
        int place = (i * 7 + i / 32) % ATOMIC;
        atomicAdd(c + place, (float)(place + m));
    }
}
#endif
