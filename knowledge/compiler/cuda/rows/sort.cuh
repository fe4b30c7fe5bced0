// A stable sort by digits: each warp has a stretch of items, counts their digits, and after what comes before each
// stretch has been added up, puts its items, 32 at a time and in order, where they belong.
namespace sorting {

// How many items of each stretch have each digit: table[digit][stretch].
template <int WARPS, int DIGITS, class Key>
DEVICE void count(Key key, int items, int stretch, int stretches, int shift, int* table) {
    __shared__ int own[WARPS][DIGITS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, number = blockIdx.x * WARPS + warp;
    for (int digit = lane; digit < DIGITS; digit += 32) own[warp][digit] = 0;
    __syncwarp();
    const long long begin = (long long)number * stretch;
    for (int k = lane; k < stretch; k += 32)
        if (begin + k < items) atomicAdd(&own[warp][(key((int)(begin + k)) >> shift) % DIGITS], 1);
    __syncwarp();
    if (number >= stretches) return;
    for (int digit = lane; digit < DIGITS; digit += 32) table[digit * stretches + number] = own[warp][digit];
}

// Every entry becomes the sum of those before it. One block of 1024 threads.
DEVICE void add_up(int* table, int entries) {
    __shared__ int totals[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, each = (entries + 1023) / 1024;
    const int begin = threadIdx.x * each, end = begin + each < entries ? begin + each : entries;
    int own = 0;
    for (int i = begin; i < end; ++i) own += table[i];
    int through = own;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, through, step);
        if (lane >= step) through += other;
    }
    if (lane == 31) totals[warp] = through;
    __syncthreads();
    int before = through - own;
    for (int w = 0; w < warp; ++w) before += totals[w];
    for (int i = begin; i < end; ++i) {
        const int count = table[i];
        table[i] = before;
        before += count;
    }
}

// Items and their keys in the order of one digit; `item(i)` is what stands at i now.
template <int WARPS, int DIGITS, class Key, class Item>
DEVICE void place(Key key, Item item, int items, int stretch, int stretches, int shift, const int* table, int* keys,
                  int* order) {
    __shared__ int next[WARPS][DIGITS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, number = blockIdx.x * WARPS + warp;
    if (number >= stretches) return;
    for (int digit = lane; digit < DIGITS; digit += 32) next[warp][digit] = table[digit * stretches + number];
    __syncwarp();
    const long long begin = (long long)number * stretch;
    for (int k = 0; k < stretch && begin + k < items; k += 32) {
        const bool present = begin + k + lane < items;
        const int at = (int)(begin + k) + lane, own = present ? key(at) : 0;
        const int digit = (own >> shift) % DIGITS;
        unsigned alike = __ballot_sync(0xffffffffu, present);  // the lanes with the same digit
#pragma unroll
        for (int bit = 1; bit < DIGITS; bit *= 2) {
            const unsigned set = __ballot_sync(0xffffffffu, digit & bit);
            alike &= digit & bit ? set : ~set;
        }
        const int rank = __popc(alike & ((1u << lane) - 1));
        const int where = next[warp][digit] + rank;
        __syncwarp();
        if (present && rank == 0) next[warp][digit] += __popc(alike);
        __syncwarp();
        if (present) keys[where] = own, order[where] = item(at);
    }
}

// Where each segment's items begin among sorted keys.
DEVICE void find_starts(const int* keys, int items, int segments, int* starts) {
    const long long segment = (long long)blockIdx.x * 256 + threadIdx.x;
    if (segment > segments) return;
    int low = 0, high = items;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (keys[middle] < segment) low = middle + 1;
        else high = middle;
    }
    starts[segment] = low;
}

}  // namespace sorting
