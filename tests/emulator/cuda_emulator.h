// CUDA C++ on the CPU: enough of the language to run generated kernels and to check their results and their
// synchronisation, never their speed.
//
// A block is run by one OS thread; its CUDA threads are fibers, started lazily, so a kernel without barriers never
// switches. A barrier (block or warp) is where fibers switch. Violations end the process with code 97 and one line:
// threads waiting at different __syncthreads(), a deadlock, a lane outside its own shuffle mask. Dynamic shared memory
// starts as NaN, so that reading it unwritten shows. EMULATOR_ORDER=1|2 starts a block's threads backwards or strided:
// a missing barrier then changes the results.
#pragma once
#include <sched.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local  // one block per OS thread at a time
#define __align__(n) __attribute__((aligned(n)))
#define EMULATED_DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(emulator::block().shared)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float a, float b) { return {a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline int2 make_int2(int a, int b) { return {a, b}; }

#include "fibers.h"

namespace emulator {

constexpr size_t kSharedBytes = 232448;
constexpr int kMaxThreads = 1024, kWarpMasks = 8;

// ---------------------------------------------------------------- blocks, warps, threads

struct Fiber {
    Context context;
    char* stack = nullptr;
    Fiber *next = nullptr, *previous = nullptr;  // ring of the block's started, unfinished threads
    int thread = 0;
    unsigned exchanges = 0;  // parity of the warp's exchange slots, so that one barrier an exchange is enough
    dim3 index;
    unsigned cluster_phase = 0;
};

struct WarpBarrier {
    unsigned mask = 0, generation = 0;
    int arrived = 0;
};

struct Warp {
    unsigned alive = 0;
    int barriers = 0;
    WarpBarrier barrier[kWarpMasks];
    uint64_t slot[2][32];
};

// Blocks that run together, each on an OS thread of its own, one at a time in a fixed order: a block runs until all of its
// threads wait for the cluster, or until it has finished. What is shared here is touched only by the block whose turn it is.
struct Block;
struct Cluster {
    static constexpr int kMost = 16;
    int size = 1, turn = 0, alive = 0, arrived = 0, idle = 0;  // threads; turns in a row in which nothing happened
    unsigned phase = 0;
    int waiting[kMost] = {};  // threads of each block that wait for the phase to end
    bool finished[kMost] = {};
    Block* blocks[kMost] = {};
    std::mutex mutex;
    std::condition_variable changed;
};

struct Block {
    Cluster* cluster = nullptr;
    int rank = 0;
    dim3 index, dim, grid;
    int threads = 0, started = 0, alive = 0, arrived = 0, line = 0;
    unsigned generation = 0;
    uint64_t idle = 0, waits = 0, number = 0;  // number: of blocks that this one was, itself included
    char* shared = nullptr;
    const std::function<void()>* kernel = nullptr;
    Fiber* current = nullptr;
    Fiber* free = nullptr;
    Context home;
    Warp warp[kMaxThreads / 32];
    std::vector<Fiber*> pool;
};

inline Block& block() {
    static thread_local Block* mine = nullptr;
    if (!mine) {
        mine = new Block();
        mine->shared = static_cast<char*>(aligned_alloc(1024, kSharedBytes + 1024));
        std::memset(mine->shared, 0xff, kSharedBytes);
    }
    return *mine;
}

[[noreturn]] inline void violation(const char* what) {
    Block& b = block();
    std::fprintf(stderr, "emulator: %s (block %u,%u,%u, thread %d, %d of %d threads at a block barrier)\n", what,
                 b.index.x, b.index.y, b.index.z, b.current ? b.current->thread : -1, b.arrived, b.alive);
    std::_Exit(97);
}

inline int order() {
    static const int value = [] {
        const char* text = std::getenv("EMULATOR_ORDER");
        return text ? std::atoi(text) : 0;
    }();
    return value;
}

// Gives the fiber the block's next CUDA thread; false when all have been started.
inline bool take_thread(Fiber* fiber) {
    Block& b = block();
    if (b.started >= b.threads) return false;
    int thread = b.started++;
    if (order() == 1) thread = b.threads - 1 - thread;
    if (order() == 2) {
        const int step = b.threads % 7 ? 7 : b.threads % 11 ? 11 : 13;
        thread = static_cast<int>((static_cast<int64_t>(thread) * step + 5) % b.threads);
    }
    fiber->thread = thread;
    fiber->exchanges = 0;
    fiber->index = {thread % b.dim.x, thread / b.dim.x % b.dim.y, thread / (b.dim.x * b.dim.y)};
    b.idle = 0;
    return true;
}

inline void release_if_full(WarpBarrier& barrier, unsigned alive) {
    if (barrier.arrived && barrier.arrived == __builtin_popcount(barrier.mask & alive)) {
        barrier.arrived = 0;
        ++barrier.generation;
    }
}

inline void release_if_full(Cluster& cluster) {
    if (cluster.arrived == 0 || cluster.arrived < cluster.alive) return;
    cluster.arrived = cluster.idle = 0;
    std::fill(cluster.waiting, cluster.waiting + cluster.size, 0);
    ++cluster.phase;
}

inline void thread_finished(Fiber* fiber) {
    Block& b = block();
    Warp& warp = b.warp[fiber->thread >> 5];
    warp.alive &= ~(1u << (fiber->thread & 31));
    --b.alive;
    b.idle = 0;
    if (b.cluster) {
        --b.cluster->alive;
        release_if_full(*b.cluster);
    }
    if (b.arrived && b.arrived == b.alive) b.arrived = 0, ++b.generation;
    for (int i = 0; i < warp.barriers; ++i) release_if_full(warp.barrier[i], warp.alive);
}

inline void switch_to(Fiber* from, Fiber* to) {
    block().current = to;
    switch_context(from->context, to->context);
}

// A fiber's whole life: run threads of the block until none is left to start, leave the ring, go on elsewhere.
inline void fiber_main() {
    for (;;) {
        Block& b = block();
        Fiber* self = b.current;
        do {
            (*b.kernel)();
            thread_finished(self);
        } while (take_thread(self));
        Fiber* next = self->next;
        if (next == self) {
            b.current = nullptr;
            switch_context(self->context, b.home);
            continue;
        }
        self->previous->next = next;
        next->previous = self->previous;
        self->next = b.free;
        b.free = self;
        switch_to(self, next);
    }
}

inline Fiber* new_fiber() {
    Block& b = block();
    if (b.free) {
        Fiber* fiber = b.free;
        b.free = fiber->next;
        return fiber;
    }
    Fiber* fiber = new Fiber();
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) violation("no memory for a thread's stack");
    fiber->stack = static_cast<char*>(memory);
    mprotect(fiber->stack, 4096, PROT_NONE);  // a stack that overflows faults
    fiber->context.prepare(fiber->stack, fiber_main);
    b.pool.push_back(fiber);
    return fiber;
}

inline void yield() {
    Block& b = block();
    Fiber* self = b.current;
    if (b.started < b.threads) {
        Fiber* fresh = new_fiber();
        take_thread(fresh);
        fresh->previous = self;
        fresh->next = self->next;
        self->next->previous = fresh;
        self->next = fresh;
        switch_to(self, fresh);
        return;
    }
    if (++b.idle > static_cast<uint64_t>(b.alive) * 4 + 64) violation("deadlock: threads wait at different barriers");
    if (self->next != self) switch_to(self, self->next);
}

// A thread that waits for what another block will write lets the others go on. All of them wait in vain for no longer than
// a minute of processor time.
inline void wait_for_another_block() {
    Block& b = block();
    b.idle = 0;
    if (++b.waits > 300'000'000) violation("a block waits for what no other block writes");
    yield();
    std::this_thread::yield();
}

inline void block_barrier(int line) {
    Block& b = block();
    if (b.arrived == 0) b.line = line;
    if (b.line != line) violation("divergent barrier: threads of one block wait at different __syncthreads()");
    if (++b.arrived == b.alive) {
        b.arrived = 0;
        ++b.generation;
        b.idle = 0;
        return;
    }
    for (const unsigned mine = b.generation; block().generation == mine;) yield();
}

inline void warp_barrier(unsigned mask) {
    Block& b = block();
    Warp& warp = b.warp[b.current->thread >> 5];
    if (!(mask >> (b.current->thread & 31) & 1)) violation("a lane is not in its own *_sync mask");
    int i = 0;
    while (i < warp.barriers && warp.barrier[i].mask != mask) ++i;
    if (i == warp.barriers) {
        if (i == kWarpMasks) {
            for (i = 0; i < kWarpMasks && warp.barrier[i].arrived; ++i) {}
            if (i == kWarpMasks) violation("more warp masks at once than the emulator keeps");
        } else {
            ++warp.barriers;
        }
        warp.barrier[i].mask = mask;
        warp.barrier[i].arrived = 0;
    }
    WarpBarrier& barrier = warp.barrier[i];
    if (++barrier.arrived == __builtin_popcount(mask & warp.alive)) {
        barrier.arrived = 0;
        ++barrier.generation;
        b.idle = 0;
        return;
    }
    for (const unsigned mine = barrier.generation; barrier.generation == mine;) yield();
}

// A thread that waits for another block lets the processor go; one that waits for ever is a mistake of the kernel.
inline void wait_for_other_blocks() {
    static thread_local uint64_t number = 0, waits = 0;
    waits = number == block().number ? waits + 1 : 0;
    number = block().number;
    if (waits > 10'000'000) violation("deadlock: a thread waits for a block that has not begun");
    sched_yield();
}

// Every lane of the mask offers a value and reads the one of lane `source(own lane)`.
template <class T, class Source> T exchange(unsigned mask, T value, Source source) {
    static_assert(sizeof(T) <= 8, "shuffles move up to eight bytes");
    Fiber* self = block().current;
    Warp& warp = block().warp[self->thread >> 5];
    const unsigned parity = self->exchanges++ & 1;
    const int lane = self->thread & 31;
    std::memcpy(&warp.slot[parity][lane], &value, sizeof(T));
    warp_barrier(mask);
    T result;
    std::memcpy(&result, &warp.slot[parity][source(lane)], sizeof(T));
    return result;
}

inline unsigned ballot(unsigned mask, bool predicate) {
    Fiber* self = block().current;
    Warp& warp = block().warp[self->thread >> 5];
    const unsigned parity = self->exchanges++ & 1;
    warp.slot[parity][self->thread & 31] = predicate;
    warp_barrier(mask);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane)
        if ((mask & warp.alive) >> lane & 1 && warp.slot[parity][lane]) votes |= 1u << lane;
    return votes;
}

// ---------------------------------------------------------------- launches

inline void run_block(int64_t number, dim3 grid, dim3 dim, size_t shared_bytes, const std::function<void()>& kernel) {
    Block& b = block();
    std::memset(b.shared, 0xff, shared_bytes);
    b.index = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
               static_cast<unsigned>(number / (static_cast<int64_t>(grid.x) * grid.y))};
    b.dim = dim;
    b.grid = grid;
    b.threads = b.alive = static_cast<int>(dim.x * dim.y * dim.z);
    b.started = b.arrived = 0;
    b.idle = b.waits = 0;
    ++b.number;
    b.kernel = &kernel;
    for (int w = 0; w * 32 < b.threads; ++w) {
        const int lanes = std::min(32, b.threads - w * 32);
        b.warp[w].alive = lanes == 32 ? ~0u : (1u << lanes) - 1;
        b.warp[w].barriers = 0;
        for (WarpBarrier& barrier : b.warp[w].barrier) barrier.arrived = 0;
    }
    Fiber* first = new_fiber();
    first->next = first->previous = first;
    take_thread(first);
    b.current = first;
    switch_context(b.home, first->context);
    b.free = nullptr;
    for (Fiber* fiber : b.pool) fiber->next = b.free, b.free = fiber;
}

}  // namespace emulator

#include "clusters.h"

namespace bulk {

// A tensor map: where the tensor lies, its sizes, strides in bytes, and the box that one copy brings, innermost first;
// dimensions that the tensor does not have are zeros.
struct alignas(64) Map {
    static constexpr int kRank = 4;
    const char* base;
    long long sizes[kRank], strides[kRank];
    int box[kRank];
};

}  // namespace bulk

namespace emulator {

// A kernel argument whose type the kernel's own signature decides.
struct Argument {
    void* pointer = nullptr;
    long long integer = 0;
    bulk::Map map{};
    Argument(void* p) : pointer(p) {}
    Argument(long long i) : integer(i) {}
    Argument(const bulk::Map& m) : map(m) {}
    operator bulk::Map() const { return map; }
    template <class T> operator T*() const { return static_cast<T*>(pointer); }
    operator int() const { return static_cast<int>(integer); }
    operator unsigned() const { return static_cast<unsigned>(integer); }
    operator long long() const { return integer; }
    operator long() const { return static_cast<long>(integer); }
};

template <class... P, class... A>
void launch(int cluster, dim3 grid, dim3 dim, size_t shared_bytes, void (*kernel)(P...), A... arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "the launch passes another number of arguments than the kernel takes");
    if (dim.x * dim.y * dim.z > kMaxThreads || dim.x * dim.y * dim.z == 0 || shared_bytes > kSharedBytes)
        violation("invalid launch configuration");
    const std::function<void()> body = [=] { kernel(static_cast<P>(Argument(arguments))...); };
    const int64_t blocks = static_cast<int64_t>(grid.x) * grid.y * grid.z;
    if (cluster > 1) {
        run_clusters(cluster, grid, dim, shared_bytes, body);
        return;
    }
    if (cluster == 0) {  // all blocks at once, each in a thread of its own
        std::vector<std::thread> threads;
        for (int64_t number = 0; number < blocks; ++number)
            threads.emplace_back([&, number] { run_block(number, grid, dim, shared_bytes, body); });
        for (std::thread& thread : threads) thread.join();
        return;
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t number = 0; number < blocks; ++number) run_block(number, grid, dim, shared_bytes, body);
}

}  // namespace emulator

#define threadIdx (emulator::block().current->index)
#define blockIdx (emulator::block().index)
#define blockDim (emulator::block().dim)
#define gridDim (emulator::block().grid)
constexpr int warpSize = 32;
#define __syncthreads() emulator::block_barrier(__LINE__)
inline void __syncwarp(unsigned mask = ~0u) { emulator::warp_barrier(mask); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { emulator::wait_for_other_blocks(); }
inline unsigned __activemask() { return emulator::block().warp[emulator::block().current->thread >> 5].alive; }
inline unsigned __ballot_sync(unsigned mask, int predicate) { return emulator::ballot(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return emulator::ballot(mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return emulator::ballot(mask, predicate == 0) == 0; }
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return emulator::exchange(mask, value, [=](int lane) { return (lane & ~(width - 1)) | (source & (width - 1)); });
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32) {
    return emulator::exchange(mask, value, [=](int lane) {
        const int other = lane ^ flip;
        return other < (lane & ~(width - 1)) + width ? other : lane;
    });
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return emulator::exchange(mask, value, [=](int lane) {
        const int other = lane + static_cast<int>(delta);
        return other < (lane & ~(width - 1)) + width ? other : lane;
    });
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return emulator::exchange(mask, value, [=](int lane) {
        const int other = lane - static_cast<int>(delta);
        return other >= (lane & ~(width - 1)) ? other : lane;
    });
}

template <class T> T __ldg(const T* from) { return *from; }
template <class T> T __ldcg(const T* from) { return *(const volatile T*)from; }
template <class T> T __ldcs(const T* from) { return *from; }
template <class T> void __stcs(T* to, T value) { *to = value; }
template <class T> T atomicAdd(T* to, T value) {
    T old, sum;
    __atomic_load(to, &old, __ATOMIC_RELAXED);
    do sum = old + value;
    while (!__atomic_compare_exchange(to, &old, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
inline int __float_as_int(float value) {
    int bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline long long __double_as_longlong(double value) {
    long long bits;
    std::memcpy(&bits, &value, 8);
    return bits;
}
inline float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
namespace math {
inline float inverse(float y) { return std::fabs(y) > 0x1p126f ? std::copysign(0.0f, y) : 1.0f / y; }
}  // namespace math
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
using std::max;
using std::min;

#include "warp_products.h"
