// Twins of the tensor-core instructions and of the 16-bit types: what `mma_tf32.cuh` and `mma_sixteen.cuh` call, with
// the fragments of the PTX ISA, so that an operand in the wrong place gives a wrong result here too.
#pragma once

// ---------------------------------------------------------------- 16-bit floats

struct __half { _Float16 value; };
inline float __half2float(__half x) { return static_cast<float>(x.value); }
inline __half __float2half_rn(float x) { return {static_cast<_Float16>(x)}; }
inline unsigned short __half_as_ushort(__half x) {
    unsigned short bits;
    std::memcpy(&bits, &x, 2);
    return bits;
}
inline __half __ushort_as_half(unsigned short bits) {
    __half x;
    std::memcpy(&x, &bits, 2);
    return x;
}

struct __nv_bfloat16 { unsigned short bits; };
inline float __bfloat162float(__nv_bfloat16 x) { return __int_as_float(static_cast<int>(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {  // to the nearest, ties to even
    const unsigned word = static_cast<unsigned>(__float_as_int(x));
    if (x != x) return {0x7fff};
    return {static_cast<unsigned short>((word + 0x7fffu + (word >> 16 & 1)) >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }

// ---------------------------------------------------------------- products of a warp

namespace emulator {

struct Fragments { unsigned a[4], b[2]; };

// Every lane's fragments, as all lanes of the warp see them.
inline const Fragments* exchange_fragments(const unsigned (&a)[4], const unsigned (&b)[2]) {
    Fiber* self = block().current;
    static thread_local Fragments shared[kMaxThreads / 32][2][32];
    const unsigned parity = self->exchanges++ & 1;
    Fragments* const slots = shared[self->thread >> 5][parity];
    Fragments& mine = slots[self->thread & 31];
    std::memcpy(mine.a, a, sizeof a);
    std::memcpy(mine.b, b, sizeof b);
    warp_barrier(~0u);
    return slots;
}

// d += a b for a 16 x DEPTH times DEPTH x 8; `value(word, part)` reads one of the PER_WORD elements of a word.
template <int DEPTH, int PER_WORD, class Value>
void multiply_fragments(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Value value) {
    const Fragments* const all = exchange_fragments(a, b);
    const int lane = block().current->thread & 31;
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = d[i];
        for (int k = 0; k < DEPTH; ++k) {
            const int late = k / (4 * PER_WORD), place = k % (4 * PER_WORD) / PER_WORD, part = k % PER_WORD;
            const unsigned left = all[row % 8 * 4 + place].a[row / 8 + 2 * late];
            const unsigned right = all[column * 4 + place].b[late];
            sum += value(left, part) * value(right, part);
        }
        d[i] = sum;
    }
}

}  // namespace emulator

namespace mma {

inline unsigned round_tf32(float x) {
    const unsigned word = static_cast<unsigned>(__float_as_int(x));
    return (word & 0x7f800000u) == 0x7f800000u ? word : (word + 0x1000u) & 0xffffe000u;
}
inline void product_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulator::multiply_fragments<8, 1>(d, a, b, [](unsigned word, int) {
        return __int_as_float(static_cast<int>(word & 0xffffe000u));  // the instruction ignores the lower bits
    });
}
inline void product_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulator::multiply_fragments<16, 2>(d, a, b, [](unsigned word, int part) {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16 * part)));
    });
}
inline void product_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulator::multiply_fragments<16, 2>(d, a, b, [](unsigned word, int part) {
        return __bfloat162float({static_cast<unsigned short>(word >> 16 * part)});
    });
}
inline float power_of_two(float x) { return std::exp2(x); }
// Word `lane % 4` of row `lane / 4` of each matrix; turned, the halves of column `lane / 4` in two neighbouring rows.
template <bool TURNED> void exchange_matrices(unsigned (&words)[4], const void* row) {
    if (reinterpret_cast<uintptr_t>(row) % 16) emulator::violation("a row of a matrix that is not aligned to 16 bytes");
    for (int i = 0; i < 4; ++i) {
        const auto of_row = [&](auto in) {
            return emulator::exchange(~0u, static_cast<const char*>(row), [=](int lane) { return i * 8 + in(lane); });
        };
        const int lane = emulator::block().current->thread & 31;
        if constexpr (TURNED) {
            unsigned short low, high;
            std::memcpy(&low, of_row([](int l) { return l % 4 * 2; }) + lane / 4 * 2, 2);
            std::memcpy(&high, of_row([](int l) { return l % 4 * 2 + 1; }) + lane / 4 * 2, 2);
            words[i] = low | static_cast<unsigned>(high) << 16;
        } else {
            std::memcpy(&words[i], of_row([](int l) { return l / 4; }) + lane % 4 * 4, 4);
        }
    }
}
inline void four_matrices(unsigned (&words)[4], const void* row) { exchange_matrices<false>(words, row); }
inline void four_matrices_turned(unsigned (&words)[4], const void* row) { exchange_matrices<true>(words, row); }
inline unsigned short bits_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }
inline unsigned short bits_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
inline unsigned pair_f16(float low, float high) { return bits_f16(low) | static_cast<unsigned>(bits_f16(high)) << 16; }
inline unsigned pair_bf16(float low, float high) { return bits_bf16(low) | static_cast<unsigned>(bits_bf16(high)) << 16; }
inline float value_f16(unsigned short bits) { return __half2float(__ushort_as_half(bits)); }
inline float value_bf16(unsigned short bits) { return __bfloat162float({bits}); }

}  // namespace mma

// ---------------------------------------------------------------- products of a warpgroup

namespace wgmma {

inline unsigned shared_address(const void* at) {
    return static_cast<unsigned>(static_cast<const char*>(at) - emulator::block().shared);
}
inline void publish() {}
inline void begin() {}
// A thread's products run when it waits for their group, not before: sums that are read too early, and tiles that are
// given back or registers that are written while they are still read, give wrong results or a violation.
struct Queue {
    uint64_t run = 0;
    std::vector<std::vector<std::function<void()>>> groups;
};
inline Queue& queue() {
    static thread_local Queue all[emulator::kMaxThreads];
    Queue& mine = all[emulator::block().current->thread];
    if (mine.run != emulator::block().number) mine = {emulator::block().number, {{}}};
    return mine;
}
inline void commit() { queue().groups.emplace_back(); }
template <int PENDING> void wait() {
    auto& groups = queue().groups;  // the last one is not committed
    while (groups.size() > PENDING + 1) {
        for (const auto& multiply : groups.front()) multiply();
        groups.erase(groups.begin());
    }
    emulator::warp_barrier(~0u);  // of all lanes: what one of them gives back, none still reads
}
template <int COUNT> void give_up() {}
template <int COUNT> void claim() {}
template <int N> void hold(float (&)[N]) {}

// The element at (row, byte of k) of an operand, found as the descriptor says: 14 bits of address, 14 bits of distance
// between atoms of eight rows, the kind of swizzle in the two highest bits.
template <class Word> Word described_word(unsigned long long word, int row, int byte) {
    const unsigned start = static_cast<unsigned>(word & 0x3fff) << 4, atoms = static_cast<unsigned>(word >> 32 & 0x3fff) << 4;
    unsigned address = start + row / 8 * atoms + row % 8 * 128 + byte;
    if (word >> 62 == 1) address ^= (address >> 7 & 7) << 4;
    Word found;
    std::memcpy(&found, emulator::block().shared + address, sizeof found);
    return found;
}

// The same where rows of memory are one k each: 14 bits of distance between boxes of 64 rows of the result's axis.
template <class Word> Word described_word_across(unsigned long long word, int row, int k) {
    const unsigned start = static_cast<unsigned>(word & 0x3fff) << 4, eights = static_cast<unsigned>(word >> 32 & 0x3fff) << 4;
    const unsigned boxes = static_cast<unsigned>(word >> 16 & 0x3fff) << 4;
    unsigned address = start + row / 64 * boxes + k / 8 * eights + k % 8 * 128 + row % 64 * sizeof(Word);
    if (word >> 62 == 1) address ^= (address >> 7 & 7) << 4;
    Word found;
    std::memcpy(&found, emulator::block().shared + address, sizeof found);
    return found;
}

// d += a b, or d = a b where it does not ADD.
template <int DEPTH, class Word, bool A, bool B, bool ADD, int N, class Value>
void multiply_described(float (&d)[N], unsigned long long a, unsigned long long b, Value value) {
    const int thread = emulator::block().current->thread % 128, lane = thread % 32;
    queue().groups.back().push_back([=, sums = &d[0]] {
        for (int j = 0; j < N; ++j) {
            const int row = thread / 32 * 16 + lane / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
            float sum = ADD ? sums[j] : 0.0f;
            for (int k = 0; k < DEPTH; ++k) {
                const int byte = k * static_cast<int>(sizeof(Word));
                const Word left = A ? described_word_across<Word>(a, row, k) : described_word<Word>(a, row, byte);
                const Word right = B ? described_word_across<Word>(b, column, k) : described_word<Word>(b, column, byte);
                sum += value(left) * value(right);
            }
            sums[j] = sum;
        }
    });
}

inline float value_tf32(unsigned word) { return __int_as_float(static_cast<int>(word & 0xffffe000u)); }
inline float value_f16(unsigned short bits) { return mma::value_f16(bits); }
inline float value_bf16(unsigned short bits) { return mma::value_bf16(bits); }

#define EMULATED_PRODUCTS(name, type, depth, word, across_a, across_b, add)                                        \
    template <int N> void name(float (&d)[N], unsigned long long a, unsigned long long b) {                         \
        multiply_described<depth, word, across_a, across_b, add>(d, a, b, value_##type);                            \
    }
#define EMULATED_SIXTEEN(type)                                                           \
    EMULATED_PRODUCTS(product_##type, type, 16, unsigned short, false, false, true)      \
    EMULATED_PRODUCTS(first_##type, type, 16, unsigned short, false, false, false)       \
    EMULATED_PRODUCTS(product_##type##_a, type, 16, unsigned short, true, false, true)   \
    EMULATED_PRODUCTS(product_##type##_b, type, 16, unsigned short, false, true, true)   \
    EMULATED_PRODUCTS(product_##type##_ab, type, 16, unsigned short, true, true, true)
EMULATED_PRODUCTS(product_tf32, tf32, 8, unsigned, false, false, true)
EMULATED_SIXTEEN(f16)
EMULATED_SIXTEEN(bf16)

// The left operand in registers, as fragments of each warp. `term` gives one product of a sum, from the registers of the
// four lanes that share the lane's two rows.
struct HeldRows { unsigned words[4][4]; };
template <int Depth, int N, class Term> void multiply_held(float (&d)[N], const unsigned (&a)[4], Term term) {
    const emulator::Fragments* const all = emulator::exchange_fragments(a, {});
    const int lane = emulator::block().current->thread % 32;
    HeldRows held;
    for (int i = 0; i < 4; ++i) std::memcpy(held.words[i], all[lane / 4 * 4 + i].a, sizeof held.words[i]);
    queue().groups.back().push_back([=, sums = &d[0], now = &a[0]] {
        if (std::memcmp(now, held.words[lane % 4], 16)) emulator::violation("registers written while they are multiplied");
        for (int j = 0; j < N; ++j) {
            const int late = j / 2 % 2, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
            for (int k = 0; k < Depth; ++k) sums[j] += term(held, late, column, k);
        }
    });
}
// 16 bits, the right operand with rows that are one k each.
template <int N, class Value>
void multiply_held_sixteen(float (&d)[N], const unsigned (&a)[4], unsigned long long b, Value value) {
    multiply_held<16>(d, a, [=](const HeldRows& held, int late, int column, int k) {
        const unsigned left = held.words[k % 8 / 2][late + k / 8 * 2];
        return value(left >> k % 2 * 16) * value(described_word_across<unsigned short>(b, column, k));
    });
}
template <int N> void held_f16(float (&d)[N], const unsigned (&a)[4], unsigned long long b) {
    multiply_held_sixteen(d, a, b, value_f16);
}
template <int N> void held_bf16(float (&d)[N], const unsigned (&a)[4], unsigned long long b) {
    multiply_held_sixteen(d, a, b, value_bf16);
}
// TF32, the right operand along k.
template <int N> void held_tf32(float (&d)[N], const unsigned (&a)[4], unsigned long long b) {
    multiply_held<8>(d, a, [=](const HeldRows& held, int late, int column, int k) {
        return value_tf32(held.words[k % 4][late + k / 4 * 2]) * value_tf32(described_word<unsigned>(b, column, k * 4));
    });
}

}  // namespace wgmma

// ---------------------------------------------------------------- copies that run while their thread goes on

namespace async {

// A thread's copies arrive when it waits for their group, not before: a missing wait reads what lay there.
struct Copy {
    void* to;
    const void* from;
    int bytes;
    bool is_there;
};
struct Queue {
    uint64_t run = 0;
    std::vector<std::vector<Copy>> groups;
};
inline Queue& queue() {
    static thread_local Queue all[emulator::kMaxThreads];
    Queue& mine = all[emulator::block().current->thread];
    if (mine.run != emulator::block().number) mine = {emulator::block().number, {{}}};
    return mine;
}
template <int BYTES, bool NEAR = false> void copy(void* to, const void* from, bool is_there) {
    if (reinterpret_cast<uintptr_t>(to) % BYTES || (is_there && reinterpret_cast<uintptr_t>(from) % BYTES))
        emulator::violation("a copy that is not aligned to its size");
    queue().groups.back().push_back({to, from, BYTES, is_there});
}
inline void commit() { queue().groups.emplace_back(); }
template <int PENDING> void wait() {
    auto& groups = queue().groups;  // the last one is not committed
    while (groups.size() > PENDING + 1) {
        for (const Copy& copy : groups.front())
            if (copy.is_there) std::memcpy(copy.to, copy.from, copy.bytes);
            else std::memset(copy.to, 0, copy.bytes);
        groups.erase(groups.begin());
    }
}

}  // namespace async

// ---------------------------------------------------------------- bulk copies and their barriers

namespace bulk {

// A barrier in its eight bytes: arrivals still missing and asked for, the phase's parity, bytes still on their way.
struct State {
    unsigned missing : 15, asked : 15, parity : 1;
    int bytes;
};
static_assert(sizeof(State) == 8);
inline State& state(unsigned long long* barrier) { return *reinterpret_cast<State*>(barrier); }
inline void turn_if_over(State& barrier) {
    if (barrier.missing || barrier.bytes) return;
    barrier.missing = barrier.asked;
    barrier.parity ^= 1;
    emulator::block().idle = 0;
}
inline void prepare(unsigned long long* barrier, int arrivals) {
    const unsigned count = static_cast<unsigned>(arrivals);
    state(barrier) = {count, count, 0, 0};
}
inline void publish() {}
inline void arrive(unsigned long long* barrier) {
    State& found = state(barrier);
    if (!found.missing) emulator::violation("more arrivals at a barrier than it was made for");
    --found.missing;
    turn_if_over(found);
}
inline void expect(unsigned long long* barrier, int bytes) {
    state(barrier).bytes += bytes;
    arrive(barrier);
}
// A copy arrives at once or when somebody waits for its barrier, by chance: who does not wait may read what lay there, and
// what is still read may be written over.
struct Copies {
    uint64_t run = 0;
    unsigned chance = 1;
    std::vector<std::pair<unsigned long long*, std::function<void()>>> pending;
};
inline Copies& copies() {
    static thread_local Copies all;  // of the block
    if (all.run != emulator::block().number) all = {emulator::block().number, 1, {}};
    return all;
}
inline void later(unsigned long long* barrier, int bytes, std::function<void()> copy) {
    const auto arrive = [=] {
        copy();
        state(barrier).bytes -= bytes;
        turn_if_over(state(barrier));
    };
    copies().chance = copies().chance * 1664525u + 1013904223u;
    if (copies().chance >> 31) arrive();
    else copies().pending.emplace_back(barrier, arrive);
}
inline void await(unsigned long long* barrier, int parity) {
    while (state(barrier).parity == static_cast<unsigned>(parity)) {
        auto& pending = copies().pending;
        const auto arrives = std::stable_partition(
            pending.begin(), pending.end(), [=](const auto& copy) { return copy.first != barrier; });
        const std::vector<std::pair<unsigned long long*, std::function<void()>>> arriving(arrives, pending.end());
        pending.erase(arrives, pending.end());
        for (const auto& copy : arriving) copy.second();
        if (arriving.empty()) emulator::yield();
    }
}
inline void copy(void* to, const void* from, int bytes, unsigned long long* barrier) {
    if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16)
        emulator::violation("a bulk copy that is not aligned to 16 bytes");
    later(barrier, bytes, [=] { std::memcpy(to, from, bytes); });
}

// Copies to global memory read shared memory as late as they may, when they are waited for: who writes there before
// stores wrong numbers, and who never waits stores none.
struct Stores {
    uint64_t run = 0;
    std::vector<std::vector<std::function<void()>>> groups;
};
inline Stores& stores() {
    static thread_local Stores all[emulator::kMaxThreads];
    Stores& mine = all[emulator::block().current->thread];
    if (mine.run != emulator::block().number) mine = {emulator::block().number, {{}}};
    return mine;
}
inline void show() {}
inline void store(void* to, const void* from, int bytes) {
    if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16 || bytes <= 0)
        emulator::violation("a bulk copy that is not aligned to 16 bytes");
    stores().groups.back().push_back([=] { std::memcpy(to, from, bytes); });
}
inline void commit() { stores().groups.emplace_back(); }
template <int PENDING> void wait_read() {
    auto& groups = stores().groups;  // the last one is not committed
    while (groups.size() > PENDING + 1) {
        for (const auto& copy : groups.front()) copy();
        groups.erase(groups.begin());
    }
}

// The box from `first` on, its 16-byte pieces swizzled; zeros outside the tensor.
template <int RANK> void bring_box(char* to, const Map& map, const long long (&first)[RANK]) {
    const int item = static_cast<int>(map.strides[0]);
    int rows = 1;
    for (int d = 1; d < RANK; ++d) rows *= map.box[d];
    for (int row = 0; row < rows; ++row)
        for (int column = 0; column < map.box[0]; ++column) {
            bool inside = first[0] + column < map.sizes[0];
            long long offset = (first[0] + column) * item;
            for (int d = 1, rest = row; d < RANK; rest /= map.box[d++]) {
                const long long at = first[d] + rest % map.box[d];
                inside &= at >= 0 && at < map.sizes[d], offset += at * map.strides[d];
            }
            const int byte = column * item;
            char* const place = to + row * 128 + (byte / 16 ^ row % 8) * 16 + byte % 16;
            if (inside) std::memcpy(place, map.base + offset, item);
            else std::memset(place, 0, item);
        }
}
template <class... Place> void copy_box(void* to, const Map* map, unsigned long long* barrier, Place... place) {
    constexpr int kRank = sizeof...(Place);
    if (reinterpret_cast<uintptr_t>(to) % 1024 || map->box[0] * map->strides[0] != 128)
        emulator::violation("a box that is not aligned to 1024 bytes, or not 128 bytes wide");
    if (!map->sizes[kRank - 1] || (kRank < Map::kRank && map->sizes[kRank]))
        emulator::violation("a box of another number of dimensions than its tensor map");
    int bytes = 128;
    for (int d = 1; d < kRank; ++d) bytes *= map->box[d];
    later(barrier, bytes, [=, map = *map] { bring_box<kRank>(static_cast<char*>(to), map, {place...}); });
}

// Barriers of a number of a block's threads, by number: some wait (`meet`), others go on (`pass`).
struct Meeting {
    uint64_t run = 0;
    int arrived = 0, asked = 0;
    unsigned generation = 0;
};
inline Meeting& meeting(int number) {
    static thread_local Meeting all[16];
    if (number < 1 || number > 15) emulator::violation("a barrier without a number of its own");
    Meeting& found = all[number];
    if (found.run != emulator::block().number) found = {emulator::block().number};
    return found;
}
inline void pass(int number, int threads) {
    Meeting& found = meeting(number);
    if (found.arrived && found.asked != threads) emulator::violation("threads of one barrier ask for different numbers");
    found.asked = threads;
    if (++found.arrived == threads) found.arrived = 0, ++found.generation, emulator::block().idle = 0;
}
inline void meet(int number, int threads) {
    const unsigned mine = meeting(number).generation;
    pass(number, threads);
    while (meeting(number).generation == mine) emulator::yield();
}

}  // namespace bulk

// ---------------------------------------------------------------- values that blocks hand to each other

namespace exchange {

inline void write(float* to, float value) { __atomic_store(to, &value, __ATOMIC_RELAXED); }
// What is missing is looked for again later, so whoever does not wait for it works with what was there.
inline float4 read(const float* from) {
    if (reinterpret_cast<uintptr_t>(from) % 16) emulator::violation("a read of four neighbours that is not aligned");
    float4 x;
    __atomic_load(from, &x.x, __ATOMIC_RELAXED);
    __atomic_load(from + 1, &x.y, __ATOMIC_RELAXED);
    __atomic_load(from + 2, &x.z, __ATOMIC_RELAXED);
    __atomic_load(from + 3, &x.w, __ATOMIC_RELAXED);
    const float parts[] = {x.x, x.y, x.z, x.w};
    for (const float part : parts)
        if (__float_as_int(part) == -1) return emulator::wait_for_another_block(), x;
    return x;
}

}  // namespace exchange
