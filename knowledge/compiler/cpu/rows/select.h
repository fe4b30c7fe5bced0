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

constexpr int BLOCK = 64;  // elements whose keys are made at a time
constexpr int LOW = 32;    // bits of an entry that hold its place

template <class T>
FOUNDRY_INLINE typename Key<T>::Entry entry_of(typename Key<T>::Type key, int64_t place) {
  return (typename Key<T>::Entry)key << LOW | (typename Key<T>::Entry)(uint32_t)place;
}

// Makes the keys of at most BLOCK elements from `begin` on, and returns how many. `least` is the least of them.
template <class T, bool LARGEST, class Value>
FOUNDRY_INLINE int make_keys(Value value, int64_t begin, int64_t length, typename Key<T>::Type* keys,
                             typename Key<T>::Type& least) {
  typedef typename Key<T>::Type K;
  const int n = (int)(length - begin < BLOCK ? length - begin : BLOCK);
  for (int j = 0; j < n; ++j) {
    const K key = Key<T>::of(value(begin + j));
    keys[j] = LARGEST ? (K)~key : key;
  }
  least = ~(K)0;
  for (int j = 0; j < n; ++j) least = keys[j] < least ? keys[j] : least;
  return n;
}

// Puts the first `count` of a row into `kept`, those from `first` on in order. `kept` has room for `room` > count
// entries, or for the whole row: candidates are added, and when it is full only the first `count` of it stay.
template <class T, bool LARGEST, class Value>
FOUNDRY_INLINE void select(Value value, int64_t length, int64_t first, int64_t count, int64_t room,
                           typename Key<T>::Entry* kept) {
  typedef typename Key<T>::Type K;
  K bound = 0, least;
  bool is_bound = false;
  int64_t size = 0;
  for (int64_t begin = 0; begin < length; begin += BLOCK) {
    alignas(64) K keys[BLOCK];
    const int n = make_keys<T, LARGEST>(value, begin, length, keys, least);
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
      kept[size++] = entry_of<T>(keys[j], begin + j);
    }
  }
  if (count < size) std::nth_element(kept, kept + (count - 1), kept + size);
  if (first && (first < count - 1 || count == size)) std::nth_element(kept, kept + first, kept + count);
  std::sort(kept + first, kept + count);
}

// Puts the first `count` of a row into `kept` as PyTorch's topk does, with the same steps of the standard library on
// elements that are told apart by their keys only: of equal elements the same ones come, in the same order. `kept` has
// room for one entry more where 64 times as many do not exceed the row, else for the whole row.
template <class T, bool LARGEST, bool SORTED, class Value>
FOUNDRY_INLINE void select_as_topk(Value value, int64_t length, int64_t count, typename Key<T>::Entry* kept) {
  typedef typename Key<T>::Type K;
  typedef typename Key<T>::Entry Entry;
  const auto before = [](Entry a, Entry b) { return (K)(a >> LOW) < (K)(b >> LOW); };
  const bool is_heap = 64 * count <= length;
  const int64_t filled = is_heap ? count : length;
  alignas(64) K keys[BLOCK];
  K least;
  for (int64_t begin = 0; begin < filled; begin += BLOCK) {
    const int n = make_keys<T, LARGEST>(value, begin, filled, keys, least);
    for (int j = 0; j < n; ++j) kept[begin + j] = entry_of<T>(keys[j], begin + j);
  }
  if (!is_heap) {
    std::nth_element(kept, kept + (count - 1), kept + length, before);
    if (SORTED) std::sort(kept, kept + (count - 1), before);
    return;
  }
  std::make_heap(kept, kept + count, before);
  for (int64_t begin = count; begin < length; begin += BLOCK) {
    const int n = make_keys<T, LARGEST>(value, begin, length, keys, least);
    if (least >= (K)(kept[0] >> LOW)) continue;
    for (int j = 0; j < n; ++j) {  // std::partial_sort: what comes before the last of those kept takes its place
      if (keys[j] >= (K)(kept[0] >> LOW)) continue;
      kept[count] = entry_of<T>(keys[j], begin + j);
      std::pop_heap(kept, kept + count + 1, before);
    }
  }
  std::sort_heap(kept, kept + count, before);
}

}  // namespace selecting
