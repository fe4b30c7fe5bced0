// Reductions of a contraction's result while it is in registers: a thread's elements, of which some may not exist, into
// a state of `runtime.cuh`, and the states of lanes that share a row.
namespace tails {

template <class S, class T, int K> DEVICE void add(S& state, const T (&x)[K], const bool (&exists)[K]) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < K; ++i) all = all && exists[i];
    if (all) {
        state.chunk(x);
        return;
    }
#pragma unroll
    for (int i = 0; i < K; ++i) {
        const T one[1] = {x[i]};
        if (exists[i]) state.chunk(one);
    }
}

template <class S, class T, int K>
DEVICE void add_at(S& state, const T (&x)[K], const int (&at)[K], const bool (&exists)[K]) {
#pragma unroll
    for (int i = 0; i < K; ++i)
        if (exists[i]) state.add(x[i], at[i]);
}

// Lanes whose numbers differ in bits of MASKS share a row; all of them get its state.
template <int MASKS, class S> DEVICE void join_lanes(S& state) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
        if (MASKS & mask) state.merge(shuffle_xor(state, mask));
}

template <int MASKS, class T> DEVICE T sum_lanes(T x) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
        if (MASKS & mask) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

// The state of all elements of the lanes that share a row. EVERY: all of them exist. Sums go over the lanes as pairs of
// pairs; deviations are from the mean, and exponentials below the largest, of all these elements.
template <int MASKS, bool EVERY, class S, class T, int K>
DEVICE void reduce(S& state, const T (&x)[K], const bool (&exists)[K]) {
    if constexpr (EVERY) state.chunk(x);
    else add(state, x, exists);
    join_lanes<MASKS>(state);
}

template <int MASKS, bool EVERY, class T, int K>
DEVICE void reduce(Sum<T>& state, const T (&x)[K], const bool (&exists)[K]) {
    T total = 0;
#pragma unroll
    for (int i = 0; i < K; ++i)
        if (EVERY || exists[i]) total += x[i];
    state.value = sum_lanes<MASKS>(total);
}

template <int MASKS, bool EVERY, class T, int K>
DEVICE void reduce(Moments<T>& state, const T (&x)[K], const bool (&exists)[K]) {
    T total = 0, squares = 0;
    int there = 0;
#pragma unroll
    for (int i = 0; i < K; ++i)
        if (EVERY || exists[i]) total += x[i], ++there;
    if constexpr (EVERY) {
#pragma unroll
        for (int mask = 1; mask < 32; mask *= 2)
            if (MASKS & mask) there *= 2;
    } else {
        there = sum_lanes<MASKS>(there);
    }
    state.count = (T)there;
    total = sum_lanes<MASKS>(total);
    state.mean = state.count == (T)0 ? (T)0 : total / state.count;
#pragma unroll
    for (int i = 0; i < K; ++i)
        if (EVERY || exists[i]) squares += (x[i] - state.mean) * (x[i] - state.mean);
    state.m2 = sum_lanes<MASKS>(squares);
}

template <int MASKS, bool EVERY, class T, int K>
DEVICE void reduce(SoftmaxState<T>& state, const T (&x)[K], const bool (&exists)[K]) {
    Extreme<T, true> highest;
#pragma unroll
    for (int i = 0; i < K; ++i)
        if (EVERY || exists[i]) highest.add(x[i]);
    join_lanes<MASKS>(highest);
    T total = 0;
#pragma unroll
    for (int i = 0; i < K; ++i)
        if ((EVERY || exists[i]) && highest.value != -(T)FOUNDRY_INF) total += math::exp(x[i] - highest.value);
    state.maximum = highest.value;
    state.sum = sum_lanes<MASKS>(total);
}

// The same of a lane's K elements, `value(k)`, of which those `exist(k)`; several chains of sums at a time, because few
// warps share a multiprocessor while a product ends.
constexpr int CHAINS = 4;

template <int MASKS, int K, bool EVERY, class S, class V, class E> DEVICE void reduce_row(S& state, V value, E exists) {
    S parts[CHAINS];
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (EVERY || exists(k)) parts[k % CHAINS].add(value(k));
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) state.merge(parts[i]);
    join_lanes<MASKS>(state);
}

template <int MASKS, int K, bool EVERY, class S, class V, class E, class P>
DEVICE void reduce_row_at(S& state, V value, E exists, P place) {
    S parts[CHAINS];
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (EVERY || exists(k)) parts[k % CHAINS].add(value(k), place(k));
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) state.merge(parts[i]);
    join_lanes<MASKS>(state);
}

template <int MASKS, int K, bool EVERY, class T, class V, class E>
DEVICE void reduce_row(Moments<T>& state, V value, E exists) {
    T totals[CHAINS] = {}, squares[CHAINS] = {};
    int there = 0;
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (EVERY || exists(k)) totals[k % CHAINS] += value(k), ++there;
    state.count = (T)sum_lanes<MASKS>(there);
    const T total = sum_lanes<MASKS>((totals[0] + totals[1]) + (totals[2] + totals[3]));
    state.mean = state.count == (T)0 ? (T)0 : total / state.count;
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (EVERY || exists(k)) {
            const T apart = value(k) - state.mean;
            squares[k % CHAINS] += apart * apart;
        }
    state.m2 = sum_lanes<MASKS>((squares[0] + squares[1]) + (squares[2] + squares[3]));
}

template <int MASKS, int K, bool EVERY, class T, class V, class E>
DEVICE void reduce_row(SoftmaxState<T>& state, V value, E exists) {
    Extreme<T, true> highest;
    reduce_row<MASKS, K, EVERY>(highest, value, exists);
    const T top = highest.value == -(T)FOUNDRY_INF ? (T)0 : highest.value;
    T totals[CHAINS] = {};
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (EVERY || exists(k)) totals[k % CHAINS] += math::exp(value(k) - top);
    state.maximum = highest.value;
    state.sum = sum_lanes<MASKS>((totals[0] + totals[1]) + (totals[2] + totals[3]));
}

}  // namespace tails
