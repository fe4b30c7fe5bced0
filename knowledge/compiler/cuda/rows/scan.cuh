// ---------------------------------------------------------------- running totals

namespace scan {

// Running totals over the LANES neighbouring lanes of a team; LANES is a power of two.
template <int LANES, class T, class F> DEVICE T over_lanes(T mine, F combine) {
    const int lane = threadIdx.x % LANES;
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, mine, distance, LANES);
        if (lane >= distance) mine = combine(other, mine);
    }
    return mine;
}

// ROUNDS vectors a lane, of which neighbours stand in neighbouring lanes. Afterwards x holds running totals over the
// team's elements, and `before` what comes before each vector. Returns the total.
template <int LANES, int ROUNDS, int V, class T, class F>
DEVICE T over_team(T (&x)[ROUNDS][V], T (&before)[ROUNDS], F combine, T identity) {
    const int lane = threadIdx.x % LANES;
    T mine[ROUNDS], total = identity;
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
#pragma unroll
        for (int j = 1; j < V; ++j) x[k][j] = combine(x[k][j - 1], x[k][j]);
        mine[k] = over_lanes<LANES>(x[k][V - 1], combine);
    }
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        const T left = __shfl_up_sync(0xffffffffu, mine[k], 1, LANES);
        const T whole = __shfl_sync(0xffffffffu, mine[k], LANES - 1, LANES);
        before[k] = lane > 0 ? combine(total, left) : total;
#pragma unroll
        for (int j = 0; j < V; ++j) x[k][j] = combine(before[k], x[k][j]);
        total = combine(total, whole);
    }
    return total;
}

// What a tile tells those behind it. A value of four bytes travels with its mark in one word; the mark of a longer one
// follows when everybody can see the value.
template <class T, bool SHORT = sizeof(T) <= 4> struct Slot {
    volatile unsigned long long word;

    DEVICE_MEMBER void tell(T value) {
        unsigned bits = 0;
        memcpy(&bits, &value, sizeof(T));
        word = bits | 1ull << 32;
    }
    DEVICE_MEMBER T wait() {
        unsigned long long seen;
        while (!((seen = word) >> 32)) __nanosleep(20);
        const unsigned bits = (unsigned)seen;
        T value;
        memcpy(&value, &bits, sizeof(T));
        return value;
    }
};
template <class T> struct Slot<T, false> {
    volatile T value;
    volatile unsigned long long mark;

    DEVICE_MEMBER void tell(T told) {
        value = told;
        __threadfence();
        mark = 1;
    }
    DEVICE_MEMBER T wait() {
        while (!mark) __nanosleep(20);
        __threadfence();
        return value;
    }
};

}  // namespace scan
