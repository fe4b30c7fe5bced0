// The first of a row in order: a key orders the elements, and of equal keys the place in the row decides.
#include <algorithm>
#include <memory>

namespace selecting {

template <class T>
struct Key {  // integers of at most 32 bits
  typedef uint32_t Type;
  typedef uint64_t Entry;
  static FOUNDRY_INLINE_MEMBER Type of(T x) { return (uint32_t)(int32_t)x ^ 0x80000000u; }
};
template <>
struct Key<int64_t> {
  typedef uint64_t Type;
  typedef unsigned __int128 Entry;
  static FOUNDRY_INLINE_MEMBER Type of(int64_t x) { return (uint64_t)x ^ 0x8000000000000000ull; }
};
template <>
struct Key<float> {
  typedef uint32_t Type;
  typedef uint64_t Entry;
  static FOUNDRY_INLINE_MEMBER Type of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t size = bits & 0x7fffffffu;
    bits = size ? bits : 0;  // one zero
    const uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return size > 0x7f800000u ? ~0u : key;
  }
};
template <>
struct Key<double> {
  typedef uint64_t Type;
  typedef unsigned __int128 Entry;
  static FOUNDRY_INLINE_MEMBER Type of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    const uint64_t size = bits & 0x7fffffffffffffffull;
    bits = size ? bits : 0;
    const uint64_t key = bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
    return size > 0x7ff0000000000000ull ? ~0ull : key;
  }
};

template <class Entry>
FOUNDRY_INLINE int64_t place(Entry entry) { return (int64_t)(uint32_t)entry; }

// Puts the first `count` of a row into `kept`, those from `first` on in order. `kept` has room for `room` > count
// entries, or for the whole row: candidates are added, and when it is full only the first `count` of it stay.
template <class T, bool LARGEST, class Value>
FOUNDRY_INLINE void select(Value value, int64_t length, int64_t first, int64_t count, int64_t room,
                           typename Key<T>::Entry* kept) {
  typedef typename Key<T>::Type K;
  typedef typename Key<T>::Entry Entry;
  constexpr int BLOCK = 64;
  constexpr int LOW = 32;
  K bound = 0;
  bool is_bound = false;
  int64_t size = 0;
  for (int64_t begin = 0; begin < length; begin += BLOCK) {
    const int n = (int)(length - begin < BLOCK ? length - begin : BLOCK);
    alignas(64) K keys[BLOCK];
    K least = ~(K)0;
    for (int j = 0; j < n; ++j) {
      const K key = Key<T>::of(value(begin + j));
      keys[j] = LARGEST ? (K)~key : key;
    }
    for (int j = 0; j < n; ++j) least = keys[j] < least ? keys[j] : least;
    if (is_bound && least >= bound) continue;  // what comes later and is equal is not among the first
    for (int j = 0; j < n; ++j) {
      if (is_bound && keys[j] >= bound) continue;
      if (size == room) {
        std::nth_element(kept, kept + (count - 1), kept + size);
        bound = (K)(kept[count - 1] >> LOW);
        is_bound = true;
        size = count;
        if (keys[j] >= bound) continue;
      }
      kept[size++] = (Entry)keys[j] << LOW | (Entry)(uint32_t)(begin + j);
    }
  }
  if (count < size) std::nth_element(kept, kept + (count - 1), kept + size);
  if (first && (first < count - 1 || count == size)) std::nth_element(kept, kept + first, kept + count);
  std::sort(kept + first, kept + count);
}

}  // namespace selecting
