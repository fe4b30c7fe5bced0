// Device helpers of Foundry's CUDA kernels: scalar mathematics with PyTorch's semantics, vector loads, and the
// states of reductions with the operations that combine them.

#define DEVICE __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define FOUNDRY_INF __int_as_float(0x7f800000)
#define FOUNDRY_NAN __int_as_float(0x7fffffff)

// ---------------------------------------------------------------- scalar mathematics

namespace math {

// One overload for float and one for double, so that no float expression is widened by accident.
#define FLOATING_1(name, single, twice)                        \
    DEVICE float name(float x) { return single(x); }           \
    DEVICE double name(double x) { return twice(x); }
#define FLOATING_2(name, single, twice)                                 \
    DEVICE float name(float x, float y) { return single(x, y); }        \
    DEVICE double name(double x, double y) { return twice(x, y); }

FLOATING_1(exp, ::expf, ::exp)
FLOATING_1(exp2, ::exp2f, ::exp2)
FLOATING_1(expm1, ::expm1f, ::expm1)
FLOATING_1(log, ::logf, ::log)
FLOATING_1(log2, ::log2f, ::log2)
FLOATING_1(log10, ::log10f, ::log10)
FLOATING_1(log1p, ::log1pf, ::log1p)
FLOATING_1(sqrt, ::sqrtf, ::sqrt)
FLOATING_1(rsqrt, ::rsqrtf, ::rsqrt)
FLOATING_1(sin, ::sinf, ::sin)
FLOATING_1(cos, ::cosf, ::cos)
FLOATING_1(tan, ::tanf, ::tan)
FLOATING_1(asin, ::asinf, ::asin)
FLOATING_1(acos, ::acosf, ::acos)
FLOATING_1(atan, ::atanf, ::atan)
FLOATING_1(sinh, ::sinhf, ::sinh)
FLOATING_1(cosh, ::coshf, ::cosh)
FLOATING_1(tanh, ::tanhf, ::tanh)
FLOATING_1(erf, ::erff, ::erf)
FLOATING_1(floor, ::floorf, ::floor)
FLOATING_1(ceil, ::ceilf, ::ceil)
FLOATING_1(round, ::rintf, ::rint)
FLOATING_1(trunc, ::truncf, ::trunc)
FLOATING_2(atan2, ::atan2f, ::atan2)
FLOATING_2(hypot, ::hypotf, ::hypot)
FLOATING_1(erfc, ::erfcf, ::erfc)
FLOATING_1(lgamma, ::lgammaf, ::lgamma)
FLOATING_1(asinh, ::asinhf, ::asinh)
FLOATING_1(acosh, ::acoshf, ::acosh)
FLOATING_1(atanh, ::atanhf, ::atanh)
FLOATING_2(copysign, ::copysignf, ::copysign)
FLOATING_2(nextafter, ::nextafterf, ::nextafter)
FLOATING_2(fmod, ::fmodf, ::fmod)
FLOATING_2(pow, ::powf, ::pow)

template <class T> struct is_floating { static constexpr bool value = false; };
template <> struct is_floating<float> { static constexpr bool value = true; };
template <> struct is_floating<double> { static constexpr bool value = true; };

template <class T> DEVICE bool isnan(T x) { return x != x; }
template <class T> DEVICE bool isinf(T x) {
    if constexpr (is_floating<T>::value) return x == (T)FOUNDRY_INF || x == -(T)FOUNDRY_INF;
    return false;
}
template <class T> DEVICE T abs(T x) {
    if constexpr (sizeof(T) == 4 && is_floating<T>::value) return ::fabsf(x);
    else if constexpr (is_floating<T>::value) return ::fabs(x);
    else return x < (T)0 ? (T)-x : x;
}
// Without the branches of a division, which ordinary numbers never take.
DEVICE float reciprocal_of_count(float x) {
    const float near = __fdividef(1.0f, x);
    return near + near * (1.0f - x * near);
}
DEVICE double reciprocal_of_count(double x) { return 1.0 / x; }
template <class T> DEVICE T square(T x) { return x * x; }
// A float in the upper half of an integer that is ordered as it is: zeros of both signs alike, NaN above all.
DEVICE long long order_key(float x) {
    const int bits = x != x ? 0x7fffffff : x == 0.0f ? 0 : __float_as_int(x);
    return (long long)(bits < 0 ? bits ^ 0x7fffffff : bits) * (1LL << 32);
}
DEVICE float of_order_key(long long key) {
    const int bits = (int)(key >> 32);
    return __int_as_float(bits < 0 ? bits ^ 0x7fffffff : bits);
}
template <class T> DEVICE T sign(T x) { return (T)((x > (T)0) - (x < (T)0)); }
template <class T> DEVICE T frac(T x) { return x - trunc(x); }

// NaN propagates: the comparison with a NaN is false, hence the tests for x itself.
template <class T> DEVICE T maximum(T x, T y) { return (x > y || x != x) ? x : y; }
template <class T> DEVICE T minimum(T x, T y) { return (x < y || x != x) ? x : y; }
template <class T> DEVICE T logaddexp(T x, T y) {
    const T top = maximum(x, y);
    return isinf(top) ? top : top + log(exp(x - top) + exp(y - top));
}
template <class T> DEVICE T clamp(T x, T low, T high) { return minimum(maximum(x, low), high); }
template <class T> DEVICE T where(bool condition, T x, T y) { return condition ? x : y; }

template <class T> DEVICE T relu(T x) { return x <= (T)0 ? (T)0 : x; }
// Divisions without the branch that an IEEE division takes for unusual numbers: a compiler moves no load across one, so
// that elements of an epilogue with branches wait for memory one after the other.
#if defined(__CUDACC__)
DEVICE float inverse(float y) {  // within a unit in the last place; 0 for y beyond 2^126
    float found;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(y));
    return found;
}
#endif
// Of ordinary numbers, within two units in the last place.
DEVICE float quotient(float x, float y) { return x * inverse(y); }
DEVICE double quotient(double x, double y) { return x / y; }
// As IEEE rounds it, but for quotients below the normal numbers; y is a constant near enough to one.
DEVICE float divided(float x, float y) {
    const float inverse = 1.0f / y, near = x * inverse;
    return isinf(near) ? near : __fmaf_rn(__fmaf_rn(-near, y, x), inverse, near);
}
// The same by what a whole row is divided by: all that depends on it alone leaves the loop over the row.
DEVICE float divided_by(float x, float y) {
    const float size = abs(y);
    return size > 2e-38f && size < 8e37f ? divided(x, y) : x / y;
}

template <class T> DEVICE T sigmoid(T x) { return quotient((T)1, (T)1 + exp(-x)); }
template <class T> DEVICE T silu(T x) { return quotient(x, (T)1 + exp(-x)); }
template <class T> DEVICE T gelu(T x) { return (T)0.5 * x * ((T)1 + erf(x * (T)0.70710678118654752440)); }
template <class T> DEVICE T gelu_tanh(T x) {  // (1 + tanh(u)) / 2 is the sigmoid of 2 u: no branch, and no cancellation
    return x * sigmoid((T)1.59576912160573071176 * (x + (T)0.044715 * x * x * x));
}
template <class T> DEVICE T softplus(T x) { return x > (T)20 ? x : log1p(exp(x)); }
template <class T> DEVICE T mish(T x) {  // tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2)
    const T e = exp(minimum(x, (T)20)), part = e * (e + (T)2);
    return x * quotient(part, part + (T)2);
}
// Times a sixth, as PyTorch does on a GPU: a division asks of each number whether it is an ordinary one.
template <class T> DEVICE T hardsigmoid(T x) { return clamp(x + (T)3, (T)0, (T)6) * (T)(1.0 / 6); }
template <class T> DEVICE T hardswish(T x) { return x * clamp(x + (T)3, (T)0, (T)6) * (T)(1.0 / 6); }
template <class T> DEVICE T softsign(T x) { return x / ((T)1 + abs(x)); }
template <class T> DEVICE T logsigmoid(T x) { return minimum(x, (T)0) - log1p(exp(-abs(x))); }
template <class T> DEVICE T leaky_relu(T x, T slope) { return x > (T)0 ? x : x * slope; }
template <class T> DEVICE T elu(T x, T alpha) { return maximum(x, (T)0) + alpha * expm1(minimum(x, (T)0)); }
template <class T> DEVICE T selu(T x) {
    const T scale = (T)1.0507009873554804934193349852946, alpha = (T)1.6732632423543772848170429916717;
    return scale * maximum(x, (T)0) + scale * alpha * expm1(minimum(x, (T)0));
}

// Integers: division rounds down and the remainder has the divisor's sign; a zero divisor gives zero, not a trap.
template <class T> DEVICE T remainder(T x, T y) {
    if constexpr (is_floating<T>::value) {
        const T rest = fmod(x, y);
        return rest != (T)0 && (y < (T)0) != (rest < (T)0) ? rest + y : rest;
    } else {
        if (y == 0) return 0;
        const T rest = x % y;
        return rest != 0 && (y < 0) != (rest < 0) ? (T)(rest + y) : rest;
    }
}
template <class T> DEVICE T floordiv(T x, T y) {
    if constexpr (is_floating<T>::value) {
        if (y == (T)0) return x / y;
        const T rest = fmod(x, y);
        T quotient = (x - rest) / y;
        if (rest != (T)0 && (y < (T)0) != (rest < (T)0)) quotient -= (T)1;
        const T down = floor(quotient);
        return quotient - down > (T)0.5 ? down + (T)1 : down;
    } else {
        if (y == 0) return 0;
        const T quotient = x / y;
        return (x % y != 0 && (x < 0) != (y < 0)) ? (T)(quotient - 1) : quotient;
    }
}
DEVICE long long fmod(long long x, long long y) { return y == 0 ? 0 : x % y; }
DEVICE int fmod(int x, int y) { return y == 0 ? 0 : x % y; }
DEVICE long long pow(long long base, long long exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    long long result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}
DEVICE int pow(int base, int exponent) { return (int)pow((long long)base, (long long)exponent); }

// An index as PyTorch reads it: negative counts from the end. What PyTorch would refuse is clamped, so that no input
// makes a kernel read outside its buffer.
DEVICE bool in_bounds(long long index, long long bound) { return index >= 0 && index < bound; }
DEVICE long long wrap_index(long long index, long long bound) {
    const long long wrapped = index < 0 ? index + bound : index;
    return wrapped < 0 ? 0 : wrapped >= bound ? bound - 1 : wrapped;
}

}  // namespace math

// ---------------------------------------------------------------- vectors

// N elements moved by one instruction when their address is a multiple of their size (at most 16 bytes each).
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec { T at[N]; };

template <int N, class T> DEVICE Vec<T, N> load_vec(const T* from) { return *reinterpret_cast<const Vec<T, N>*>(from); }
template <int N, class T> DEVICE void store_vec(T* to, const Vec<T, N>& value) {
    *reinterpret_cast<Vec<T, N>*>(to) = value;
}
// To global memory. Where addresses have 64 bits the compiler stores a vector's elements one by one, which takes half as
// long again for a whole tensor; an instruction of its own stays whole.
template <int N, class T> DEVICE void write_vec(T* to, const Vec<T, N>& value) {
#if defined(__CUDACC__)
    if constexpr (sizeof(value) == 16) {
        const unsigned* const words = reinterpret_cast<const unsigned*>(&value);
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(words[0]),
                     "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
        return;
    }
#endif
    store_vec<N>(to, value);
}

// ---------------------------------------------------------------- states of reductions

// A state starts as the identity, takes elements one by one (`add`) or K at a time (`chunk`), and merges with another
// state of the same row. All merges are symmetric, so that every thread of a butterfly ends with the same bits.
// A constructor writes the identity, no initialiser of a member: of an array of arrays nvcc 13.0 gives only the first row
// what members are initialised with, and zeros to the others.

template <class T> DEVICE_MEMBER constexpr T lowest() {
    if constexpr (math::is_floating<T>::value) return -(T)__builtin_huge_val();
    else if constexpr (sizeof(T) == 1 && (T)-1 > (T)0) return (T)0;
    else return (T)(1LL << (8 * sizeof(T) - 1));
}
template <class T> DEVICE_MEMBER constexpr T highest() {
    if constexpr (math::is_floating<T>::value) return (T)__builtin_huge_val();
    else if constexpr (sizeof(T) == 1 && (T)-1 > (T)0) return (T)-1;
    else return (T)~(1ULL << (8 * sizeof(T) - 1));
}

template <class T> struct Sum {  // chunks are summed plainly and merged with the rounding error kept (Knuth's two-sum)
    T value, error;
    DEVICE_MEMBER Sum() : value(0), error(0) {}
    DEVICE_MEMBER void add(T x) { value += x; }
    template <int K> DEVICE_MEMBER void chunk(const T (&x)[K]) {
        Sum other;
#pragma unroll
        for (int i = 0; i < K; ++i) other.add(x[i]);
        merge(other);
    }
    DEVICE_MEMBER void merge(const Sum& other) {
        const T total = value + other.value;
        if constexpr (math::is_floating<T>::value) {
            const T seen = total - value;
            error = (error + other.error) + ((value - (total - seen)) + (other.value - seen));
        }
        value = total;
    }
    // An infinite or NaN total has a meaningless error term.
    DEVICE_MEMBER T result() const { return value - value == (T)0 ? value + error : value; }
};

template <class T> struct Prod {
    T value;
    DEVICE_MEMBER Prod() : value(1) {}
    DEVICE_MEMBER void add(T x) { value *= x; }
    template <int K> DEVICE_MEMBER void chunk(const T (&x)[K]) {
#pragma unroll
        for (int i = 0; i < K; ++i) add(x[i]);
    }
    DEVICE_MEMBER void merge(const Prod& other) { value *= other.value; }
    DEVICE_MEMBER T result() const { return value; }
};

template <class T, bool MAXIMUM> struct Extreme {
    T value;
    DEVICE_MEMBER Extreme() : value(MAXIMUM ? lowest<T>() : highest<T>()) {}
    DEVICE_MEMBER void add(T x) { value = MAXIMUM ? math::maximum(x, value) : math::minimum(x, value); }
    template <int K> DEVICE_MEMBER void chunk(const T (&x)[K]) {
#pragma unroll
        for (int i = 0; i < K; ++i) add(x[i]);
    }
    DEVICE_MEMBER void merge(const Extreme& other) { add(other.value); }
    DEVICE_MEMBER T result() const { return value; }
};

template <class T, bool MAXIMUM> struct Arg {  // the first of equal ones; NaN wins
    T value;
    int index;
    DEVICE_MEMBER Arg() : value(MAXIMUM ? lowest<T>() : highest<T>()), index(0x7fffffff) {}
    DEVICE_MEMBER void add(T x, int at) {
        const bool better = MAXIMUM ? x > value : x < value;
        const bool equal = x == value || (x != x && value != value);
        if (better || (x != x && value == value) || (equal && at < index)) value = x, index = at;
    }
    DEVICE_MEMBER void merge(const Arg& other) { add(other.value, other.index); }
    DEVICE_MEMBER long long result() const { return index; }
};

template <bool ALL> struct Truth {
    int value;
    DEVICE_MEMBER Truth() : value(ALL) {}
    template <class T> DEVICE_MEMBER void add(T x) { value = ALL ? value & (x != (T)0) : value | (x != (T)0); }
    template <class T, int K> DEVICE_MEMBER void chunk(const T (&x)[K]) {
#pragma unroll
        for (int i = 0; i < K; ++i) add(x[i]);
    }
    DEVICE_MEMBER void merge(const Truth& other) { add(other.value); }
    DEVICE_MEMBER bool result() const { return value != 0; }
};

// Mean and sum of squared deviations: two passes inside a chunk, Chan, Golub and LeVeque (1979) between chunks.
template <class T> struct Moments {
    T count, mean, m2;
    DEVICE_MEMBER Moments() : count(0), mean(0), m2(0) {}
    template <int K> DEVICE_MEMBER void chunk(const T (&x)[K]) {
        Moments other;
#pragma unroll
        for (int i = 0; i < K; ++i) other.mean += x[i];
        other.mean *= (T)(1.0 / K);
#pragma unroll
        for (int i = 0; i < K; ++i) other.m2 += (x[i] - other.mean) * (x[i] - other.mean);
        // Nobody else merges the same two: a step, which stays exact over thousands of chunks, need not be symmetric.
        const T before = count, delta = other.mean - mean;
        count += (T)K;
        const T share = (T)K * math::reciprocal_of_count(count);
        m2 = (m2 + other.m2) + delta * delta * (before * share);
        mean += delta * share;
    }
    DEVICE_MEMBER void merge(const Moments& other) {
        const T total = count + other.count;
        if (total == (T)0) return;
        const T inverse = math::reciprocal_of_count(total), delta = other.mean - mean;
        m2 = (m2 + other.m2) + delta * delta * (count * other.count * inverse);
        // From the mean of the larger part by a step, whose rounding is small beside a mean's; means times their counts
        // lose a unit in the last place at every merge, which a difference of means then shows.
        const bool is_smaller = count < other.count;
        const T step = delta * ((is_smaller ? -count : other.count) * inverse);
        if (count == other.count) mean = (T)0.5 * (mean + other.mean);
        else if (delta - delta == (T)0) mean = (is_smaller ? other.mean : mean) + step;
        else mean = (count * mean + other.count * other.mean) * inverse;  // infinite or NaN
        count = total;
    }
};

// max(x) and sum(exp(x - max)) in one pass (Milakov and Gimelshein 2018).
template <class T> struct SoftmaxState {
    T maximum, sum;
    DEVICE_MEMBER SoftmaxState() : maximum(-(T)FOUNDRY_INF), sum(0) {}
    template <int K> DEVICE_MEMBER void chunk(const T (&x)[K]) {
        T highest = maximum;
#pragma unroll
        for (int i = 0; i < K; ++i) highest = math::maximum(x[i], highest);
        if (highest == -(T)FOUNDRY_INF) return;
        T part = 0;
#pragma unroll
        for (int i = 0; i < K; ++i) part += math::exp(x[i] - highest);
        sum = (highest == maximum ? sum : sum * math::exp(maximum - highest)) + part;
        maximum = highest;
    }
    DEVICE_MEMBER void merge(const SoftmaxState& other) {
        const T highest = math::maximum(maximum, other.maximum);
        if (highest == -(T)FOUNDRY_INF) return;
        const T mine = maximum == highest ? sum : sum * math::exp(maximum - highest);
        const T theirs = other.maximum == highest ? other.sum : other.sum * math::exp(other.maximum - highest);
        maximum = highest, sum = mine + theirs;
    }
    // A row of -inf has no softmax: x - max is NaN, and so is the sum of the two-pass form.
    DEVICE_MEMBER T total() const { return maximum == -(T)FOUNDRY_INF ? (T)FOUNDRY_NAN : sum; }
    DEVICE_MEMBER T logsumexp() const { return math::isinf(maximum) ? maximum : maximum + math::log(sum); }
};

// ---------------------------------------------------------------- combining the states of a team of threads

template <class S> DEVICE S shuffle_xor(const S& state, int mask) {
    S other;
    if constexpr (sizeof(S) % 4 == 0) {
        const unsigned* from = reinterpret_cast<const unsigned*>(&state);
        unsigned* to = reinterpret_cast<unsigned*>(&other);
#pragma unroll
        for (int i = 0; i < (int)(sizeof(S) / 4); ++i) to[i] = __shfl_xor_sync(0xffffffffu, from[i], mask);
    } else {  // a sum or a maximum of 8 or 16 bits: a word for each byte
        const unsigned char* from = reinterpret_cast<const unsigned char*>(&state);
        unsigned char* to = reinterpret_cast<unsigned char*>(&other);
#pragma unroll
        for (int i = 0; i < (int)sizeof(S); ++i) {
            to[i] = (unsigned char)__shfl_xor_sync(0xffffffffu, (unsigned)from[i], mask);
        }
    }
    return other;
}

template <int LANES, class S> DEVICE S reduce_lanes(S state) {  // LANES: a power of two, aligned inside the warp
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2) state.merge(shuffle_xor(state, mask));
    return state;
}

// States of several reductions that are combined behind one barrier.
template <class A, class B> struct Joined {
    A first;
    B second;
    DEVICE_MEMBER void merge(const Joined& other) {
        first.merge(other.first);
        second.merge(other.second);
    }
};

// Shared memory for COUNT states, which have constructors and so cannot be declared there directly.
#define SHARED_STATES(S, name, count)                                              \
    __shared__ __align__(16) unsigned char name##_bytes[sizeof(S) * (count)];    \
    S* const name = reinterpret_cast<S*>(name##_bytes)

// All threads of the block; every warp combines the warps' partials itself, which saves a second barrier.
template <int WARPS, class S> DEVICE S reduce_block(S state, S* partials) {
    state = reduce_lanes<32>(state);
    if constexpr (WARPS > 1) {
        const int lane = threadIdx.x & 31;
        if (lane == 0) partials[threadIdx.x >> 5] = state;
        __syncthreads();
        state = lane < WARPS ? partials[lane] : S();
        state = reduce_lanes<32>(state);
    }
    return state;
}

// The HEIGHT threads that share a column of the block.
template <int HEIGHT, int WIDTH, class S> DEVICE S reduce_column(S state, S* partials) {
    if constexpr (HEIGHT > 1) {
        partials[threadIdx.y * WIDTH + threadIdx.x] = state;
        __syncthreads();
        state = partials[threadIdx.x];
#pragma unroll 4
        for (int i = 1; i < HEIGHT; ++i) state.merge(partials[i * WIDTH + threadIdx.x]);
    }
    return state;
}
