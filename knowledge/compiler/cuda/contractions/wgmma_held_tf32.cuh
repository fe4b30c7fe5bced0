// A warpgroup's products in TF32 whose left operand it holds in registers (64 rows, as fragments of m16n8k8 in each warp),
// and whose right one lies in shared memory along k. Where no NVIDIA compiler reads this, whoever compiles it supplies
// functions of the same names.
namespace wgmma {

#if defined(__CUDACC__)
#define FOUNDRY_HELD_TF32(columns, sums, at, a0, a1, a2, a3, b, ...)                                                   \
    DEVICE void held_tf32(float (&d)[sums], const unsigned (&left)[4], unsigned long long right) {                    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k8.f32.tf32.tf32 {" at "}, {%" a0 ",%" a1 ",%" a2    \
                     ",%" a3 "}, %" b ", 1, 1, 1;"                                                                    \
                     : __VA_ARGS__                                                                                    \
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));                           \
    }
FOUNDRY_HELD_TF32("16", 8, FOUNDRY_AT_8, "8", "9", "10", "11", "12", FOUNDRY_EIGHT(d, 0))
FOUNDRY_HELD_TF32("24", 12, FOUNDRY_AT_12, "12", "13", "14", "15", "16", FOUNDRY_EIGHT(d, 0), FOUNDRY_FOUR(d, 8))
FOUNDRY_HELD_TF32("32", 16, FOUNDRY_AT_16, "16", "17", "18", "19", "20", FOUNDRY_SIXTEEN(d, 0))
FOUNDRY_HELD_TF32("48", 24, FOUNDRY_AT_24, "24", "25", "26", "27", "28", FOUNDRY_SIXTEEN(d, 0), FOUNDRY_EIGHT(d, 16))
FOUNDRY_HELD_TF32("64", 32, FOUNDRY_AT_32, "32", "33", "34", "35", "36", FOUNDRY_SIXTEEN(d, 0), FOUNDRY_SIXTEEN(d, 16))
FOUNDRY_HELD_TF32("96", 48, FOUNDRY_AT_48, "48", "49", "50", "51", "52", FOUNDRY_SIXTEEN(d, 0), FOUNDRY_SIXTEEN(d, 16),
                  FOUNDRY_SIXTEEN(d, 32))
FOUNDRY_HELD_TF32("128", 64, FOUNDRY_AT_64, "64", "65", "66", "67", "68", FOUNDRY_SIXTEEN(d, 0), FOUNDRY_SIXTEEN(d, 16),
                  FOUNDRY_SIXTEEN(d, 32), FOUNDRY_SIXTEEN(d, 48))
#endif

}  // namespace wgmma
