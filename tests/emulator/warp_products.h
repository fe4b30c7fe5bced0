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
inline unsigned short bits_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }
inline unsigned short bits_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

}  // namespace mma
