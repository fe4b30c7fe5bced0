// Reductions of CPU kernels: independent lanes inside a chunk of a row, states that merge between chunks.

// What `fold` combines by: numbers, and vectors of them.
#define FOUNDRY_COMBINE(NAME, OF_NUMBERS, OF_VECTORS)                         \
  struct NAME {                                                               \
    template <class V>                                                        \
    FOUNDRY_INLINE_MEMBER V operator()(V a, V b) const {                      \
      if constexpr (std::is_arithmetic_v<V>) return (V)(OF_NUMBERS);          \
      else return OF_VECTORS;                                                 \
    }                                                                         \
  };
FOUNDRY_COMBINE(Plus, a + b, a + b)
FOUNDRY_COMBINE(Times, a * b, a * b)
FOUNDRY_COMBINE(Larger, math::maximum(a, b), (a > b) | (a != a) ? a : b)
FOUNDRY_COMBINE(Smaller, math::minimum(a, b), (a < b) | (a != a) ? a : b)
FOUNDRY_COMBINE(Either, a | b, a | b)
FOUNDRY_COMBINE(Both, a & b, a & b)
#undef FOUNDRY_COMBINE

template <class Index, int WIDTH, int... AT>
FOUNDRY_INLINE Index places(std::integer_sequence<int, AT...>) {  // each lane's partner, WIDTH further on
  return Index{((AT + WIDTH) % (int)sizeof...(AT))...};
}
template <int WIDTH, class Index, class V, class Lanes, class Combine>
FOUNDRY_INLINE V fold_vector(V v, Lanes lanes, Combine combine) {
  v = combine(v, (V)__builtin_shuffle(v, places<Index, WIDTH>(lanes)));
  if constexpr (WIDTH > 1) return fold_vector<WIDTH / 2, Index>(v, lanes, combine);
  else return v;
}
// A tree, as pairwise summation wants. What fits a vector register stays there: the compiler made branches of its last steps.
template <class T, int L, class Combine>
FOUNDRY_INLINE T fold(T (&lanes)[L], Combine combine) {
  constexpr int W = L < 64 / (int)sizeof(T) ? L : 64 / (int)sizeof(T);
#pragma GCC unroll 16
  for (int width = L / 2; width >= W; width /= 2)
#pragma omp simd
    for (int l = 0; l < width; ++l) lanes[l] = combine(lanes[l], lanes[l + width]);
  if constexpr (W == 1) {
    return lanes[0];
  } else {
    typedef T Vector __attribute__((vector_size(W * sizeof(T))));
    using Narrow = std::conditional_t<sizeof(T) == 2, int16_t, int8_t>;
    using Number = std::conditional_t<sizeof(T) == 8, int64_t, std::conditional_t<sizeof(T) == 4, int32_t, Narrow>>;
    typedef Number Index __attribute__((vector_size(W * sizeof(T))));
    Vector whole;
    std::memcpy(&whole, lanes, sizeof(whole));
    return fold_vector<W / 2, Index>(whole, std::make_integer_sequence<int, W>{}, combine)[0];
  }
}

// ---------------------------------------------------------------- reduction states: chunks of a row merge into one

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, float>, double, T>;  // carries float sums between chunks

template <class T>
struct Sum {
  Wide<T> value = 0;
  FOUNDRY_INLINE_MEMBER void merge(Sum other) { value += other.value; }
};
template <class T>
struct Product {
  Wide<T> value = 1;
  FOUNDRY_INLINE_MEMBER void merge(Product other) { value *= other.value; }
};
template <class T>
struct Maximum {
  T value = lowest<T>();
  FOUNDRY_INLINE_MEMBER void merge(Maximum other) { value = math::maximum(value, other.value); }
};
template <class T>
struct Minimum {
  T value = highest<T>();
  FOUNDRY_INLINE_MEMBER void merge(Minimum other) { value = math::minimum(value, other.value); }
};

// Mean and sum of squared deviations of `count` values (Chan, Golub, LeVeque 1979).
struct Moments {
  double count = 0, mean = 0, m2 = 0;
  FOUNDRY_INLINE_MEMBER void merge(Moments other) {
    const double total = count + other.count, delta = other.mean - mean;
    if (total == 0) return;
    mean += delta * (other.count / total);
    m2 += other.m2 + delta * delta * (count * other.count / total);
    count = total;
  }
};

// sum(exp(x - max)), rescaled when a chunk raises the maximum (Milakov and Gimelshein 2018).
template <class T>
struct ExpSum {
  T max = lowest<T>();
  double sum = 0;
  // What to subtract before exp: an infinity would make NaN of a chunk that adds nothing.
  static FOUNDRY_INLINE_MEMBER T reference(T max) { return math::isinf(max) ? (T)0 : max; }
  FOUNDRY_INLINE_MEMBER void merge(ExpSum other) {
    const T top = math::maximum(max, other.max), from = reference(top);
    sum = sum * std::exp((double)(max - from)) + other.sum * std::exp((double)(other.max - from));
    max = top;
  }
  FOUNDRY_INLINE_MEMBER T total() const { return math::isinf(max) ? (T)NAN : (T)sum; }  // of exp(x - max), as written
  FOUNDRY_INLINE_MEMBER T log() const { return (T)(std::log(sum) + (double)reference(max)); }
};

// The largest (or smallest) value and its first position; the first NaN wins over everything.
template <class T, bool larger>
struct Best {
  T value = larger ? lowest<T>() : highest<T>();
  int64_t at = std::numeric_limits<int64_t>::max();
  FOUNDRY_INLINE_MEMBER void merge(Best other) {
    const bool nan = value != value, other_nan = other.value != other.value;
    const bool better = (larger ? other.value > value : other.value < value) | (other_nan & !nan);
    const bool same = (other.value == value) | (nan & other_nan);
    const bool take = better | (same & (other.at < at));
    value = take ? other.value : value;
    at = take ? other.at : at;
  }
};
