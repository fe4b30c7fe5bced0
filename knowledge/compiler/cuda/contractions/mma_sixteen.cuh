// Products of 16-bit operands, added up in float32. The PTX instructions stand behind inline functions; where no NVIDIA
// compiler reads this, whoever compiles it supplies functions of the same names.
namespace mma {

#if defined(__CUDACC__)
#define FOUNDRY_PRODUCT_16(name, type)                                                                                \
    DEVICE void name(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {                                 \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "     \
            "{%0,%1,%2,%3};"                                                                                          \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                          \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                      \
    }
FOUNDRY_PRODUCT_16(product_f16, "f16")
FOUNDRY_PRODUCT_16(product_bf16, "bf16")
// As in NVIDIA's headers for these types, which take a compiler as long to read as a small kernel does to compile.
DEVICE unsigned short bits_f16(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
DEVICE unsigned short bits_bf16(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
// Two neighbours in 32 bits, each as it would be alone, by one instruction.
DEVICE unsigned pair_f16(float low, float high) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
DEVICE unsigned pair_bf16(float low, float high) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
DEVICE float value_f16(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
DEVICE float value_bf16(unsigned short bits) { return __int_as_float((int)bits << 16); }
#endif

struct Sixteen {
    static constexpr int PER_WORD = 2, DEPTH = 16;
    static constexpr bool DRAINED = false;
    struct A { unsigned at[4]; };
    struct B { unsigned at[2]; };
    static DEVICE_MEMBER A a(const unsigned (&words)[4]) { return {{words[0], words[1], words[2], words[3]}}; }
    static DEVICE_MEMBER B b(const unsigned (&words)[2]) { return {{words[0], words[1]}}; }
};
struct Float16 : Sixteen {
    static DEVICE_MEMBER unsigned short pack(float x) { return bits_f16(x); }
    static DEVICE_MEMBER unsigned pair(float low, float high) { return pair_f16(low, high); }
    static DEVICE_MEMBER void multiply(float (&d)[4], const A& a, const B& b) { product_f16(d, a.at, b.at); }
};
struct Bfloat16 : Sixteen {
    static DEVICE_MEMBER unsigned short pack(float x) { return bits_bf16(x); }
    static DEVICE_MEMBER unsigned pair(float low, float high) { return pair_bf16(low, high); }
    static DEVICE_MEMBER void multiply(float (&d)[4], const A& a, const B& b) { product_bf16(d, a.at, b.at); }
};

}  // namespace mma
