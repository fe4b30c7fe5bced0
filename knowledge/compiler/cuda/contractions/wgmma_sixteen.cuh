// A warpgroup's products of 16-bit operands, added up in float32. Where no NVIDIA
// compiler reads this, whoever compiles it supplies functions of the same names.
namespace wgmma {

#if defined(__CUDACC__)
FOUNDRY_WGMMA(product_f16, "k16", "f16", "1", ", 0, 0")
FOUNDRY_WGMMA(product_bf16, "k16", "bf16", "1", ", 0, 0")
FOUNDRY_WGMMA(first_f16, "k16", "f16", "0", ", 0, 0")
FOUNDRY_WGMMA(first_bf16, "k16", "bf16", "0", ", 0, 0")
#endif

struct Float16 {
    static constexpr int BYTES = 2, DEPTH = 16, UNIT = 1;
    using Element = unsigned short;
    static DEVICE_MEMBER unsigned short pack(float x) { return mma::bits_f16(x); }
    static DEVICE_MEMBER float value(unsigned short bits) { return mma::value_f16(bits); }
    template <int N> static DEVICE_MEMBER void multiply(float (&d)[N], unsigned long long a, unsigned long long b) {
        product_f16(d, a, b);
    }
    template <int N> static DEVICE_MEMBER void first(float (&d)[N], unsigned long long a, unsigned long long b) {
        first_f16(d, a, b);  // whatever d held before
    }
};
struct Bfloat16 {
    static constexpr int BYTES = 2, DEPTH = 16, UNIT = 1;
    using Element = unsigned short;
    static DEVICE_MEMBER unsigned short pack(float x) { return mma::bits_bf16(x); }
    static DEVICE_MEMBER float value(unsigned short bits) { return mma::value_bf16(bits); }
    template <int N> static DEVICE_MEMBER void multiply(float (&d)[N], unsigned long long a, unsigned long long b) {
        product_bf16(d, a, b);
    }
    template <int N> static DEVICE_MEMBER void first(float (&d)[N], unsigned long long a, unsigned long long b) {
        first_bf16(d, a, b);  // whatever d held before
    }
};

}  // namespace wgmma
