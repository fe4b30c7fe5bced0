// Scans of CPU kernels.

// In-register inclusive scan of one block by log2(L) shifted combines (Hillis and Steele 1986).
template <class T, int L>
struct Block {
  typedef T Values __attribute__((vector_size(L * sizeof(T))));
  using Index = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  typedef Index Indices __attribute__((vector_size(L * sizeof(T))));

  // Lanes move up by `step`; `nothing` comes in from below. The indices are constants, so this is one permutation.
  template <int step, int... lane>
  static FOUNDRY_INLINE_MEMBER Values shifted(Values values, Values nothing, std::integer_sequence<int, lane...>) {
    return __builtin_shuffle(nothing, values, Indices{(lane < step ? lane : L + lane - step)...});
  }
  template <int step, class Combine>
  static FOUNDRY_INLINE_MEMBER Values scan(Values values, Values nothing, Combine combine) {
    if constexpr (step >= L) return values;
    else {
      const Values below = shifted<step>(values, nothing, std::make_integer_sequence<int, L>());
      return scan<step * 2>(combine(below, values), nothing, combine);
    }
  }
};

// The block is read in its own type, so that the load finds the whole vector that was just stored, and widened after.
template <int L, class From, class T, class Combine>
FOUNDRY_INLINE void prefix(const From* block, T (&scanned)[L], T neutral, Combine combine) {
  typename Block<From, L>::Values narrow;
  std::memcpy(&narrow, block, sizeof(narrow));
  typename Block<T, L>::Values values = __builtin_convertvector(narrow, typename Block<T, L>::Values);
  values = Block<T, L>::template scan<1>(values, neutral - typename Block<T, L>::Values{}, combine);
  std::memcpy(scanned, &values, sizeof(values));
}

FOUNDRY_INLINE double log_add_exp(double a, double b) {
  const double top = math::maximum(a, b), low = math::minimum(a, b);
  return math::isinf(top) | (top != top) ? top : top + std::log1p(std::exp(low - top));
}
