// A warpgroup's products whose left operand it holds in registers (64 rows, as fragments of m16n8k16 in each warp) and
// whose right one lies in shared memory, rows of it being one k each. The PTX instructions stand behind inline functions;
// where no NVIDIA compiler reads this, whoever compiles it supplies functions of the same names.
namespace wgmma {

#if defined(__CUDACC__)
#define FOUNDRY_HELD_OF(name, type, columns, sums, at, a0, a1, a2, a3, b, ...)                                         \
    DEVICE void name(float (&d)[sums], const unsigned (&left)[4], unsigned long long right) {                         \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" at "}, {%" a0 ",%" a1   \
                     ",%" a2 ",%" a3 "}, %" b ", 1, 1, 1, 1;"                                                         \
                     : __VA_ARGS__                                                                                    \
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));                           \
    }
#define FOUNDRY_HELD(name, type)                                                                                      \
    FOUNDRY_HELD_OF(name, type, "64", 32, FOUNDRY_AT_32, "32", "33", "34", "35", "36", FOUNDRY_SIXTEEN(d, 0),         \
                    FOUNDRY_SIXTEEN(d, 16))                                                                           \
    FOUNDRY_HELD_OF(name, type, "96", 48, FOUNDRY_AT_48, "48", "49", "50", "51", "52", FOUNDRY_SIXTEEN(d, 0),         \
                    FOUNDRY_SIXTEEN(d, 16), FOUNDRY_SIXTEEN(d, 32))                                                   \
    FOUNDRY_HELD_OF(name, type, "128", 64, FOUNDRY_AT_64, "64", "65", "66", "67", "68", FOUNDRY_SIXTEEN(d, 0),        \
                    FOUNDRY_SIXTEEN(d, 16), FOUNDRY_SIXTEEN(d, 32), FOUNDRY_SIXTEEN(d, 48))
FOUNDRY_HELD(held_f16, "f16")
FOUNDRY_HELD(held_bf16, "bf16")
#endif

template <class P> struct Held;
template <> struct Held<Float16> {
    template <int N> static DEVICE_MEMBER void multiply(float (&d)[N], const unsigned (&a)[4], unsigned long long b) {
        held_f16(d, a, b);
    }
};
template <> struct Held<Bfloat16> {
    template <int N> static DEVICE_MEMBER void multiply(float (&d)[N], const unsigned (&a)[4], unsigned long long b) {
        held_bf16(d, a, b);
    }
};

// COUNT rows of a head in shared memory: boxes of 64 elements side by side, a row of a box being 128 swizzled bytes.
template <class P, int COUNT> struct Boxes {
    static constexpr int BOX = COUNT * 128;
    // Rows from `row` (a multiple of 8), 16 elements from `k` on: they lie along k.
    static DEVICE_MEMBER unsigned long long along(const unsigned char* tile, int row, int k) {
        return Operand<P, COUNT>::described(tile + k / 64 * BOX, row, k % 64);
    }
    // 16 rows from `row` on, columns from `d` (a multiple of 64): a row is one k.
    static DEVICE_MEMBER unsigned long long across(const unsigned char* tile, int row, int d) {
        const unsigned address = shared_address(tile + d / 64 * BOX + row * 128);
        return (unsigned long long)((address & 0x3ffffu) >> 4) | (unsigned long long)(BOX / 16) << 16 | 64ull << 32 |
               1ull << 62;
    }
};

// An element of a mask's tile of ROWS rows: boxes of 128 bytes of a row side by side, their 16-byte pieces swizzled.
template <class T, int ROWS> DEVICE const T* mask_at(const unsigned char* tile, int row, int column) {
    const int byte = column * (int)sizeof(T), piece = byte % 128 / 16 ^ row % 8;
    return reinterpret_cast<const T*>(tile + byte / 128 * ROWS * 128 + row * 128 + piece * 16 + byte % 16);
}

}  // namespace wgmma
