// Reductions of CPU kernels: independent lanes inside a chunk of a row, states that merge between chunks.

template <class T, int L, class Combine>
FOUNDRY_INLINE T fold(T (&lanes)[L], Combine combine) {  // a tree, as pairwise summation wants
#pragma GCC unroll 16
  for (int width = L / 2; width > 0; width /= 2)
#pragma omp simd
    for (int l = 0; l < width; ++l) lanes[l] = combine(lanes[l], lanes[l + width]);
  return lanes[0];
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
