// Values that the blocks of one launch hand to each other through global memory, none of which waits for a barrier: what
// has not come yet holds bits that no value has. Where no NVIDIA compiler reads this, whoever compiles it supplies
// `read` and `write`.
namespace exchange {

constexpr unsigned MISSING = 0xffffffffu;

#if defined(__CUDACC__)
// Four neighbours as they are now, each either missing or whole.
DEVICE float4 read(const float* from) {
    float4 x;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(__cvta_generic_to_global(from)));
    return x;
}
DEVICE void write(float* to, float value) {
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "f"(value));
}
#endif

DEVICE bool is_there(float x) { return (unsigned)__float_as_int(x) != MISSING; }
DEVICE bool are_there(float4 x) { return is_there(x.x) && is_there(x.y) && is_there(x.z) && is_there(x.w); }
DEVICE void give(float* to, float value) { write(to, value != value ? FOUNDRY_NAN : value); }

}  // namespace exchange
