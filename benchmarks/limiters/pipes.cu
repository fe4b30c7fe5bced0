// Kernels that keep one kind of execution unit busy, or only half of a warp.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define KERNEL extern "C" __global__ void __launch_bounds__(256) probe(const float* a, const float* b, float* c, int n, int m)

#if defined(FMA)  // FMA independent chains
KERNEL {
    float x[FMA];
    for (int k = 0; k < FMA; ++k) x[k] = threadIdx.x + k;
    for (int i = 0; i < m; ++i) {
#pragma unroll
        for (int r = 0; r < 8; ++r)
#pragma unroll
            for (int k = 0; k < FMA; ++k) x[k] = x[k] * 0.999f + 0.5f;
    }
    float sum = 0.0f;
    for (int k = 0; k < FMA; ++k) sum += x[k];
    c[blockIdx.x * 256 + threadIdx.x] = sum;
}
#elif defined(SPECIAL)
KERNEL {
    float x = threadIdx.x * 1e-3f, y = x + 1.0f, z = x + 2.0f, w = x + 3.0f;
    for (int i = 0; i < m; ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#if SPECIAL == 1
            asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
            asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(y));
            asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(z));
            asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(w));
#else
            asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(x));
            asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(y));
            asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(z));
            asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(w));
#endif
        }
    }
    c[blockIdx.x * 256 + threadIdx.x] = x + y + z + w;
}
#elif defined(INTEGER)  // a hash
KERNEL {
    unsigned x = threadIdx.x + 1u, y = x + 77u, z = x ^ 991u, w = x * 3u;
    for (int i = 0; i < m; ++i) {
#pragma unroll
        for (int r = 0; r < 8; ++r) {
            x ^= x << 13; y ^= y << 13; z ^= z << 13; w ^= w << 13;
            x ^= x >> 17; y ^= y >> 17; z ^= z >> 17; w ^= w >> 17;
            x ^= x << 5; y ^= y << 5; z ^= z << 5; w ^= w << 5;
        }
    }
    ((unsigned*)c)[blockIdx.x * 256 + threadIdx.x] = x ^ y ^ z ^ w;
}
#elif defined(TENSOR)  // products of tiles that stay in registers
KERNEL {
    unsigned p[4] = {threadIdx.x, 2u, 3u, 4u}, q[2] = {5u, threadIdx.x};
    float d[4][4] = {};
    for (int i = 0; i < m; ++i) {
#pragma unroll
        for (int r = 0; r < 8; ++r)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                asm volatile("mma.sync.aligned.m16n8k" TENSOR
                             " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+f"(d[k][0]), "+f"(d[k][1]), "+f"(d[k][2]), "+f"(d[k][3])
                             : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
    }
    float sum = 0.0f;
    for (int k = 0; k < 4; ++k) sum += d[k][0] + d[k][1] + d[k][2] + d[k][3];
    c[blockIdx.x * 256 + threadIdx.x] = sum;
}
#elif defined(DIVERGE)  // threads of a warp turn DIVERGE ways, one after another
KERNEL {
    float x = threadIdx.x * 1e-3f;
    int way = threadIdx.x % DIVERGE;
    for (int i = 0; i < m; ++i) {
        for (int w = 0; w < DIVERGE; ++w)
            if (way == w) {
#pragma unroll 1
                for (int k = 0; k < 16 + w; ++k) x = x * 0.999f + __sinf(x) * (w + 1);
            }
    }
    c[blockIdx.x * 256 + threadIdx.x] = x;
}
#elif defined(UNEVEN)  // threads of a warp have loops of different length
KERNEL {
    float x = threadIdx.x * 1e-3f;
    int turns = (threadIdx.x & 31) == 0 ? m : 1 + (threadIdx.x & 31) / 8;
    for (int i = 0; i < turns; ++i) x = x * 0.999f + __cosf(x);
    c[blockIdx.x * 256 + threadIdx.x] = x;
}
#endif
