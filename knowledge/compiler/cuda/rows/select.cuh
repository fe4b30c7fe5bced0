// The first of a row in order: a key orders the elements, and of equal keys the place in the row decides. A block finds
// the last of them digit by digit, gathers what is not behind it in shared memory, and sorts that.
namespace selecting {

template <class T>
struct Key {  // integers of at most 32 bits
    typedef unsigned Type;
    static DEVICE Type of(T x) { return (unsigned)(int)x ^ 0x80000000u; }
};
template <>
struct Key<long long> {
    typedef unsigned long long Type;
    static DEVICE Type of(long long x) { return (unsigned long long)x ^ 0x8000000000000000ull; }
};
template <>
struct Key<float> {
    typedef unsigned Type;
    static DEVICE Type of(float x) {
        const unsigned bits = x == 0.0f ? 0u : (unsigned)__float_as_int(x);  // one zero
        return x != x ? ~0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    }
};
template <>
struct Key<double> {
    typedef unsigned long long Type;
    static DEVICE Type of(double x) {
        const unsigned long long bits = x == 0.0 ? 0ull : (unsigned long long)__double_as_longlong(x);
        return x != x ? ~0ull : bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
    }
};

enum Order { FIRST, FEW, UNSORTED };
constexpr unsigned NOWHERE = ~0u;

template <class K>
struct Entry {
    K key;
    unsigned place;
};
template <class K>
DEVICE bool comes_before(const Entry<K>& a, const Entry<K>& b) {
    return a.key < b.key || (a.key == b.key && a.place < b.place);
}

// The digit that element number `rank` of those counted has, how many have smaller ones, and how many have this one.
DEVICE void find_digit(const int* counts, int rank, int* found) {
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    int own = 0;
    for (int d = 0; d < 8; ++d) own += counts[8 * lane + d];
    int through = own;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, through, step);
        if (lane >= step) through += other;
    }
    int before = through - own;
    if (rank < before || rank >= through) return;
    int digit = 8 * lane;
    while (before + counts[digit] <= rank) before += counts[digit++];
    found[0] = digit, found[1] = before, found[2] = counts[digit];
}

// Element number `rank` of a row, or, where it need not be `exact`, a bound that as many elements do not exceed.
template <class K, int THREADS, class Keys>
DEVICE Entry<K> find(const Keys& key, int length, int rank, bool exact) {
    __shared__ int counts[256];
    __shared__ int found[3];
    constexpr int BITS = 8 * sizeof(K);
    Entry<K> bound = {0, 0};
    for (int shift = BITS + 24; shift >= 0; shift -= 8) {  // the digits of the key, then those of the place
        const bool of_key = shift >= 32;
        const int low = of_key ? shift - 32 : shift;
        if (!of_key && shift && (unsigned)(length - 1) >> shift == 0) continue;
        for (int d = threadIdx.x; d < 256; d += THREADS) counts[d] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < length; i += THREADS) {
            const K own = key(i);
            if (of_key) {
                if (low + 8 == BITS || (own ^ bound.key) >> (low + 8) == 0) atomicAdd(&counts[(own >> low) & 255], 1);
            } else if (own == bound.key && (low == 24 || ((unsigned)i ^ bound.place) >> (low + 8) == 0)) {
                atomicAdd(&counts[((unsigned)i >> low) & 255], 1);
            }
        }
        __syncthreads();
        find_digit(counts, rank, found);
        __syncthreads();
        rank -= found[1];
        const bool is_whole = !exact && found[2] == rank + 1;  // all with this digit are wanted
        if (of_key) bound.key |= (K)found[0] << low;
        else bound.place |= (unsigned)found[0] << low;
        if (!is_whole) continue;
        if (of_key) bound.key |= ((K)1 << low) - 1, bound.place = ~0u;
        else bound.place |= (1u << low) - 1;
        break;
    }
    return bound;
}

template <class K, int THREADS, int LIST>
DEVICE void sort(Entry<K>* list) {
    for (int size = 2; size <= LIST; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            for (int t = threadIdx.x; t < LIST / 2; t += THREADS) {
                const int low = 2 * t - (t & (step - 1)), high = low + step;
                const Entry<K> a = list[low], b = list[high];
                if (comes_before(b, a) == ((low & size) == 0)) list[low] = b, list[high] = a;
            }
            __syncthreads();
        }
}

// Puts at most 32 entries in order by the steps of PyTorch's sort of so few, in which equal ones change places: those
// without a place, which fill the list up, come last.
template <class K>
DEVICE void sort_as_topk(Entry<K>* list) {
#pragma unroll 1
    for (int size = 2; size <= 32; size *= 2)
#pragma unroll 1
        for (int step = size / 2; step > 0; step /= 2) {
            if (threadIdx.x < 16) {
                const int t = threadIdx.x, low = 2 * t - (t & (step - 1)), high = low + step;
                const Entry<K> a = list[low], b = list[high];
                const bool is_before = (a.key < b.key && a.place != NOWHERE) || b.place == NOWHERE;
                const bool turned = size < 32 && (t & (size / 2)) != 0;
                if (is_before == turned) list[low] = b, list[high] = a;
            }
            __syncthreads();
        }
}

// Calls emit(r, place) for elements number `first` to `count` (without it) of a row, of equal ones the first first, or
// as PyTorch's topk does (UNSORTED: without an order; FEW: at most 32 of them): it gathers what is before the last one
// as it lies in the row, then the first of what equals that. LIST is a power of two that holds `count` entries and is
// 32 at least for FEW, or 1 where only the last is wanted; STAGED is the length of a row whose keys are kept, or 0.
template <class T, bool LARGEST, Order ORDER, int THREADS, int LIST, int STAGED, class Value, class Emit>
DEVICE void select(const Value& value, const Emit& emit, int length, int first, int count) {
    typedef typename Key<T>::Type K;
    __shared__ K staged[STAGED ? STAGED : 1];
    const auto made = [&](int i) -> K {
        const K key = Key<T>::of(value(i));
        return LARGEST ? (K)~key : key;
    };
    if (STAGED) {
        for (int i = threadIdx.x; i < length; i += THREADS) staged[i] = made(i);
        __syncthreads();
    }
    const auto key = [&](int i) -> K { return STAGED ? staged[i] : made(i); };
    if (LIST == 1) {
        const Entry<K> only = find<K, THREADS>(key, length, first, true);
        if (threadIdx.x == 0) emit(0, (long long)only.place);
        return;
    }
    __shared__ Entry<K> list[LIST];
    __shared__ int taken;
    if (threadIdx.x == 0) taken = 0;
    Entry<K> bound = {~(K)0, NOWHERE};
    if (count < length || ORDER != FIRST) bound = find<K, THREADS>(key, length, count - 1, ORDER != FIRST);
    for (int i = count + threadIdx.x; i < LIST; i += THREADS) list[i] = {~(K)0, NOWHERE};
    __syncthreads();
    for (int i = threadIdx.x; i < length; i += THREADS) {
        const Entry<K> own = {key(i), (unsigned)i};
        if (comes_before(bound, own)) continue;
        list[atomicAdd(&taken, 1)] = {ORDER == FIRST ? own.key : (K)(own.key == bound.key), own.place};
    }
    __syncthreads();
    sort<K, THREADS, LIST>(list);
    if (ORDER == FEW) {
        for (int r = threadIdx.x; r < count; r += THREADS) list[r].key = key((int)list[r].place);
        __syncthreads();
        sort_as_topk(list);
    }
#pragma unroll 1  // else ptxas spills
    for (int r = first + threadIdx.x; r < count; r += THREADS) emit(r - first, (long long)list[r].place);
}

}  // namespace selecting
