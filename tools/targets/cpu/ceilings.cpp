// Best rates of this CPU: copy through memory, copy in cache, float32 fused multiply-add, products of bfloat16 in pairs where
// there is an instruction for them, one parallel region.
// Arguments: last-level cache bytes, seconds to spend. Prints one JSON object. All threads of OMP_NUM_THREADS work.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

static double now() {
    using clock = std::chrono::steady_clock;
    return std::chrono::duration<double>(clock::now().time_since_epoch()).count();
}

template <class Work>
static double best_seconds(double budget, Work work) {
    double best = 1e30;
    const double end = now() + budget;
    work();  // touches pages and starts the threads
    do {
        const double start = now();
        work();
        best = std::min(best, now() - start);
    } while (now() < end);
    return best;
}

// Each thread copies its own slice, as a kernel does; `repeats` passes lengthen a copy that stays in cache.
static void copy(float* to, const float* from, size_t count, int repeats) {
#pragma omp parallel
    {
        const size_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        const size_t begin = count * me / threads, end = count * (me + 1) / threads;
        for (int pass = 0; pass < repeats; ++pass) {
            for (size_t i = begin; i < end; ++i) to[i] = from[i];
            __asm__ volatile("" ::: "memory");  // every pass must happen
        }
    }
}

static void copy_streaming(float* to, const float* from, size_t count) {
#pragma omp parallel
    {
        const size_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        const size_t begin = count * me / threads, end = count * (me + 1) / threads;
        std::memcpy(to + begin, from + begin, (end - begin) * sizeof(float));  // non-temporal when large
    }
}

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef float Vector __attribute__((vector_size(kVectorBytes)));
constexpr int kLanes = kVectorBytes / sizeof(float);
constexpr int kChains = 12;  // independent accumulators hide the latency of the two FMA pipes
constexpr long kSteps = 1 << 16;

static double multiply_add() {
    double total = 0;
#pragma omp parallel reduction(+ : total)
    {
        Vector chain[kChains];
        for (int c = 0; c < kChains; ++c) chain[c] = Vector{} + (1.0f + 0.01f * c);
        Vector scale = Vector{} + 0.999999f, shift = Vector{} + 1e-6f;
        for (long step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
            for (int c = 0; c < kChains; ++c) chain[c] = chain[c] * scale + shift;
        }
        for (int c = 0; c < kChains; ++c) total += chain[c][0];
    }
    return total;
}

// The same steps with 16 sums of two products each; kPairProducts: of an instruction, 0 where there is none.
#if defined(__AVX512BF16__)
constexpr int kPairProducts = 32;
static double multiply_pairs() {
    double total = 0;
#pragma omp parallel reduction(+ : total)
    {
        __m512 chain[kChains];
        for (int c = 0; c < kChains; ++c) chain[c] = _mm512_set1_ps(1.0f + 0.01f * c);
        const __m512bh left = (__m512bh)_mm512_set1_epi32(0x3a833a83), right = (__m512bh)_mm512_set1_epi32(0x3f803f80);
        for (long step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
            for (int c = 0; c < kChains; ++c) chain[c] = _mm512_dpbf16_ps(chain[c], left, right);
        }
        for (int c = 0; c < kChains; ++c) total += _mm512_cvtss_f32(chain[c]);
    }
    return total;
}
#else
constexpr int kPairProducts = 0;
static double multiply_pairs() { return 0; }
#endif

static void region() {
    for (int i = 0; i < 200; ++i) {
#pragma omp parallel
        { __asm__ volatile("" ::: "memory"); }
    }
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const size_t cache = std::max<size_t>(std::strtoull(argv[1], nullptr, 10), 1 << 20);
    const double budget = std::atof(argv[2]) / 6;
    const size_t large = std::min<size_t>(std::max<size_t>(4 * cache, 64u << 20), 512u << 20) / sizeof(float);
    const size_t small = cache / 8 / sizeof(float);  // source and destination together fill a quarter
    float* from = static_cast<float*>(std::aligned_alloc(4096, large * sizeof(float)));
    float* to = static_cast<float*>(std::aligned_alloc(4096, large * sizeof(float)));
    if (!from || !to) return 3;
#pragma omp parallel for  // first touch where it will be read
    for (size_t i = 0; i < large; ++i) from[i] = to[i] = 1.0f;

    const double plain = best_seconds(budget, [&] { copy(to, from, large, 1); });
    const double streaming = best_seconds(budget, [&] { copy_streaming(to, from, large); });
    const double cached = best_seconds(budget, [&] { copy(to, from, small, 8); }) / 8;
    volatile double sink = 0;
    const double arithmetic = best_seconds(budget, [&] { sink = sink + multiply_add(); });
    const double in_pairs = kPairProducts ? best_seconds(budget, [&] { sink = sink + multiply_pairs(); }) : 0;
    const double launch = best_seconds(budget / 2, region) / 200;
    const double bytes = 2.0 * sizeof(float);
    const double steps = 2.0 * kChains * kSteps * omp_get_max_threads(), flops = steps * kLanes / arithmetic;
    const double half_flops = kPairProducts ? std::max(flops, steps * kPairProducts / in_pairs) : flops;
    std::printf("{\"copy_bytes_per_s\": %.6e, \"cache_bytes_per_s\": %.6e, \"flops_per_s\": %.6e, \"half_flops_per_s\": %.6e, "
                "\"launch_ms\": %.6e}\n",
                bytes * large / std::min(plain, streaming), bytes * small / cached, flops, half_flops, 1e3 * launch);
    return 0;
}
