// A warpgroup's products of 16-bit operands of which one or both lie along the result's axis in memory, not along k. Where
// no NVIDIA compiler reads this, whoever compiles it supplies functions of the same names.
namespace wgmma {

#if defined(__CUDACC__)
FOUNDRY_WGMMA(product_f16_a, "k16", "f16", "1", ", 1, 0")
FOUNDRY_WGMMA(product_f16_b, "k16", "f16", "1", ", 0, 1")
FOUNDRY_WGMMA(product_f16_ab, "k16", "f16", "1", ", 1, 1")
FOUNDRY_WGMMA(product_bf16_a, "k16", "bf16", "1", ", 1, 0")
FOUNDRY_WGMMA(product_bf16_b, "k16", "bf16", "1", ", 0, 1")
FOUNDRY_WGMMA(product_bf16_ab, "k16", "bf16", "1", ", 1, 1")
#endif

// Which of the operands lie so.
template <class P, bool A, bool B> struct Across;
template <bool A, bool B> struct Across<Float16, A, B> {
    template <int N> static DEVICE_MEMBER void multiply(float (&d)[N], unsigned long long a, unsigned long long b) {
        if constexpr (A && B) product_f16_ab(d, a, b);
        else if constexpr (A) product_f16_a(d, a, b);
        else product_f16_b(d, a, b);
    }
};
template <bool A, bool B> struct Across<Bfloat16, A, B> {
    template <int N> static DEVICE_MEMBER void multiply(float (&d)[N], unsigned long long a, unsigned long long b) {
        if constexpr (A && B) product_bf16_ab(d, a, b);
        else if constexpr (A) product_bf16_a(d, a, b);
        else product_bf16_b(d, a, b);
    }
};

// The word that describes such an operand from `out` (a multiple of 64) at depth k (a multiple of 16): boxes of 64 by 64, of
// which a row of 128 bytes is one k, lie one after the other; 1024 bytes from eight of k to the next, 128-byte swizzle.
DEVICE unsigned long long described_across(const unsigned char* tile, int out, int k) {
    const unsigned address = shared_address(tile + out / 64 * 8192 + k * 128);
    return (unsigned long long)((address & 0x3ffffu) >> 4) | 512ull << 16 | 64ull << 32 | 1ull << 62;
}

}  // namespace wgmma
