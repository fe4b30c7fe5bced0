// Matrix products of a warpgroup (four warps) on the tensor cores of compute capability 9.0a: both operands lie in shared
// memory, are described by one 64-bit word each, and are multiplied while the warps go on (PTX ISA, "Asynchronous
// warpgroup level matrix instructions"). Where no NVIDIA compiler reads this, whoever compiles it supplies the functions
// of the first part. A precision (wgmma_tf32.cuh, wgmma_sixteen.cuh) says how many `BYTES` an element has, and the `DEPTH`
// of one product in k, 32 bytes of a row; `UNIT` is what bits differ by between neighbours.
namespace wgmma {

#if defined(__CUDACC__)
DEVICE unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }
DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }  // stores, to the tensor cores
DEVICE void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
// Registers of each thread of a warpgroup from here on, of those that the block has: fewer, or more once others gave some up.
template <int COUNT> DEVICE void give_up() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void claim() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

#define FOUNDRY_FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FOUNDRY_EIGHT(d, i) FOUNDRY_FOUR(d, i), FOUNDRY_FOUR(d, i + 4)
#define FOUNDRY_SIXTEEN(d, i) FOUNDRY_EIGHT(d, i), FOUNDRY_EIGHT(d, i + 8)
// Places of the sums in the instruction's text, so many of them.
#define FOUNDRY_AT_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define FOUNDRY_AT_12 FOUNDRY_AT_8 ",%8,%9,%10,%11"
#define FOUNDRY_AT_16 FOUNDRY_AT_12 ",%12,%13,%14,%15"
#define FOUNDRY_AT_24 FOUNDRY_AT_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define FOUNDRY_AT_32 FOUNDRY_AT_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define FOUNDRY_AT_40 FOUNDRY_AT_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define FOUNDRY_AT_48 FOUNDRY_AT_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define FOUNDRY_AT_56 FOUNDRY_AT_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define FOUNDRY_AT_64 FOUNDRY_AT_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define FOUNDRY_AT_72 FOUNDRY_AT_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define FOUNDRY_AT_80 FOUNDRY_AT_72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define FOUNDRY_AT_88 FOUNDRY_AT_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define FOUNDRY_AT_96 FOUNDRY_AT_88 ",%88,%89,%90,%91,%92,%93,%94,%95"
// d += a b, or d = a b where `add` is 0, for a of 64 x DEPTH and b of DEPTH x `columns`; `a` and `b` are the places of the
// descriptors in the text.
#define FOUNDRY_WGMMA_OF(name, depth, type, add, flags, columns, sums, at, a, b, ...)                                  \
    DEVICE void name(float (&d)[sums], unsigned long long left, unsigned long long right) {                           \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" columns depth ".f32." type "." type " {" at "}, %" a ", %" b  \
                     ", " add ", 1, 1" flags ";"                                                                      \
                     : __VA_ARGS__                                                                                    \
                     : "l"(left), "l"(right));                                                                        \
    }
#define FOUNDRY_WGMMA(name, depth, type, add, flags)                                                                   \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "16", 8, FOUNDRY_AT_8, "8", "9", FOUNDRY_EIGHT(d, 0))              \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "24", 12, FOUNDRY_AT_12, "12", "13", FOUNDRY_EIGHT(d, 0),          \
                     FOUNDRY_FOUR(d, 8))                                                                               \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "32", 16, FOUNDRY_AT_16, "16", "17", FOUNDRY_SIXTEEN(d, 0))        \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "48", 24, FOUNDRY_AT_24, "24", "25", FOUNDRY_SIXTEEN(d, 0),        \
                     FOUNDRY_EIGHT(d, 16))                                                                             \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "64", 32, FOUNDRY_AT_32, "32", "33", FOUNDRY_SIXTEEN(d, 0),        \
                     FOUNDRY_SIXTEEN(d, 16))                                                                           \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "80", 40, FOUNDRY_AT_40, "40", "41", FOUNDRY_SIXTEEN(d, 0),        \
                     FOUNDRY_SIXTEEN(d, 16), FOUNDRY_EIGHT(d, 32))                                                     \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "96", 48, FOUNDRY_AT_48, "48", "49", FOUNDRY_SIXTEEN(d, 0),        \
                     FOUNDRY_SIXTEEN(d, 16), FOUNDRY_SIXTEEN(d, 32))                                                   \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "112", 56, FOUNDRY_AT_56, "56", "57", FOUNDRY_SIXTEEN(d, 0),       \
                     FOUNDRY_SIXTEEN(d, 16), FOUNDRY_SIXTEEN(d, 32), FOUNDRY_EIGHT(d, 48))                             \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "128", 64, FOUNDRY_AT_64, "64", "65", FOUNDRY_SIXTEEN(d, 0),       \
                     FOUNDRY_SIXTEEN(d, 16), FOUNDRY_SIXTEEN(d, 32), FOUNDRY_SIXTEEN(d, 48))                           \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "144", 72, FOUNDRY_AT_72, "72", "73", FOUNDRY_SIXTEEN(d, 0),       \
                     FOUNDRY_SIXTEEN(d, 16), FOUNDRY_SIXTEEN(d, 32), FOUNDRY_SIXTEEN(d, 48), FOUNDRY_EIGHT(d, 64))     \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "160", 80, FOUNDRY_AT_80, "80", "81", FOUNDRY_SIXTEEN(d, 0),       \
                     FOUNDRY_SIXTEEN(d, 16), FOUNDRY_SIXTEEN(d, 32), FOUNDRY_SIXTEEN(d, 48), FOUNDRY_SIXTEEN(d, 64))   \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "176", 88, FOUNDRY_AT_88, "88", "89", FOUNDRY_SIXTEEN(d, 0),       \
                     FOUNDRY_SIXTEEN(d, 16), FOUNDRY_SIXTEEN(d, 32), FOUNDRY_SIXTEEN(d, 48), FOUNDRY_SIXTEEN(d, 64),   \
                     FOUNDRY_EIGHT(d, 80))                                                                             \
    FOUNDRY_WGMMA_OF(name, depth, type, add, flags, "192", 96, FOUNDRY_AT_96, "96", "97", FOUNDRY_SIXTEEN(d, 0),       \
                     FOUNDRY_SIXTEEN(d, 16), FOUNDRY_SIXTEEN(d, 32), FOUNDRY_SIXTEEN(d, 48), FOUNDRY_SIXTEEN(d, 64),   \
                     FOUNDRY_SIXTEEN(d, 80))
template <int N> DEVICE void hold(float (&d)[N]) {  // what is read after it is not read before it
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
#endif

// An operand's tile: OUT rows of m (or n), 128 bytes of k each, in atoms of eight rows whose 16-byte pieces are swizzled:
// piece c of row r lies at c ^ (r % 8), so that neither rows nor columns of pieces meet in a bank.
template <class P, int OUT> struct Operand {
    static constexpr int BYTES = OUT * 128;
    static DEVICE_MEMBER typename P::Element* place(unsigned char* tile, int out, int k) {
        const int byte = k * P::BYTES;
        return reinterpret_cast<typename P::Element*>(tile + out * 128 + ((byte / 16) ^ (out % 8)) * 16 + byte % 16);
    }
    // N neighbours along k, or along the result's axis.
    template <int N, bool ALONG_K>
    static DEVICE_MEMBER void keep(unsigned char* tile, int out, int k, const Vec<float, N>& value) {
        Vec<typename P::Element, N> packed;
#pragma unroll
        for (int i = 0; i < N; ++i) packed.at[i] = P::pack(value.at[i]);
        if constexpr (ALONG_K) {
            store_vec<N>(place(tile, out, k), packed);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) *place(tile, out + i, k) = packed.at[i];
        }
    }
    // The word that describes the rows from `out` (a multiple of 8) at depth k (a multiple of DEPTH): address, 1024 bytes
    // from atom to atom, 128-byte swizzle.
    static DEVICE_MEMBER unsigned long long described(const unsigned char* tile, int out, int k) {
        const unsigned address = shared_address(tile + out * 128 + k * P::BYTES);
        return (unsigned long long)((address & 0x3ffffu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
    }
};

template <int N> DEVICE float (&part(float* first))[N] { return *reinterpret_cast<float (*)[N]>(first); }

}  // namespace wgmma
