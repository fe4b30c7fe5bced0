// A warpgroup's products of float32 operands in TF32, rounded when they are stored in shared memory. Where no NVIDIA
// compiler reads this, whoever compiles it supplies functions of the same names.
namespace wgmma {

#if defined(__CUDACC__)
FOUNDRY_WGMMA(product_tf32, "k8", "tf32", "1", "")
#endif

struct Tf32 {
    static constexpr int BYTES = 4, DEPTH = 8, UNIT = 0x2000;
    using Element = unsigned;
    static DEVICE_MEMBER unsigned pack(float x) { return mma::round_tf32(x); }
    static DEVICE_MEMBER float value(unsigned bits) { return __int_as_float((int)bits); }
    template <int N> static DEVICE_MEMBER void multiply(float (&d)[N], unsigned long long a, unsigned long long b) {
        product_tf32(d, a, b);
    }
};

}  // namespace wgmma
