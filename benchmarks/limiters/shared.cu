// Kernels that wait for shared memory or for each other.
#if defined(BANKS)  // threads of a warp meet in the same banks, BANKS words from each other
extern "C" __global__ void __launch_bounds__(256) probe(const float* a, const float* b, float* c, int n, int m) {
    extern __shared__ float held[];
    int t = threadIdx.x;
    for (int i = t; i < 256 * BANKS; i += 256) held[i] = i * 0.5f;
    __syncthreads();
    float sum = 0.0f;
    volatile float* mine = held + t * BANKS;
    for (int i = 0; i < m; ++i) {
#pragma unroll
        for (int k = 0; k < BANKS && k < 8; ++k) sum += mine[k];
    }
    c[blockIdx.x * 256 + t] = sum;
}
#elif defined(BARRIERS)  // every few instructions the whole block waits
extern "C" __global__ void __launch_bounds__(BARRIERS) probe(const float* a, const float* b, float* c, int n, int m) {
    __shared__ float held[BARRIERS];
    int t = threadIdx.x;
    float x = t;
    for (int i = 0; i < m; ++i) {
        held[t] = x;
        __syncthreads();
        x = held[(t + 32) % BARRIERS] * 0.5f + 1.0f;
        __syncthreads();
    }
    c[blockIdx.x * BARRIERS + t] = x;
}
#elif defined(ONE_WORKS)  // one warp works, the block waits
extern "C" __global__ void __launch_bounds__(ONE_WORKS) probe(const float* a, const float* b, float* c, int n, int m) {
    __shared__ float held[32];
    int t = threadIdx.x;
    float sum = t;
    for (int i = 0; i < m; ++i) {
        if (t < 32) {
            float x = sum;
#pragma unroll
            for (int k = 0; k < 24; ++k) x = x * 0.999f + 0.25f;
            held[t] = x;
        }
        __syncthreads();
        sum += held[(t + i) & 31];
        __syncthreads();
    }
    c[blockIdx.x * ONE_WORKS + t] = sum;
}
#endif
