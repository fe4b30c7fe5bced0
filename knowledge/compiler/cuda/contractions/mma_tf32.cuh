// Products of float32 operands in TF32. The PTX instructions stand behind inline functions; where no NVIDIA compiler reads
// this, whoever compiles it supplies functions of the same names.
namespace mma {

#if defined(__CUDACC__)
DEVICE unsigned round_tf32(float x) {  // to 10 stored bits, ties away from zero; the product itself would cut them off
    unsigned word;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(x));
    return word;
}
DEVICE void product_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

struct Tf32 {  // operands rounded to 11 significant bits, as PyTorch's products with TF32 allowed
    static constexpr int PER_WORD = 1, DEPTH = 8;
    static constexpr bool DRAINED = false;
    struct A { unsigned at[4]; };
    struct B { unsigned at[2]; };
    static DEVICE_MEMBER unsigned pack(float x) { return round_tf32(x); }
    static DEVICE_MEMBER A a(const unsigned (&words)[4]) { return {{words[0], words[1], words[2], words[3]}}; }
    static DEVICE_MEMBER B b(const unsigned (&words)[2]) { return {{words[0], words[1]}}; }
    static DEVICE_MEMBER void multiply(float (&d)[4], const A& a, const B& b) { product_tf32(d, a.at, b.at); }
};

// Each operand as the sum of two TF32 numbers, three products: as accurate as float32 arithmetic (Ootomo and Yokota
// 2022). Cutting off instead of rounding cannot overflow, and the product itself cuts off the low part. Infinities stay
// in the high part: what is left of them, inf - inf, becomes a number too small to be seen beside them. Tensor cores cut
// off what they add, so sums leave them (`DRAINED`) after every tile and are added up in float32.
struct Tf32x3 {
    static constexpr int PER_WORD = 1, DEPTH = 8;
    static constexpr bool DRAINED = true;
    struct A { unsigned high[4], low[4]; };
    struct B { unsigned high[2], low[2]; };
    static DEVICE_MEMBER unsigned pack(float x) { return (unsigned)__float_as_int(x); }
    static DEVICE_MEMBER void divide(unsigned word, unsigned& high, unsigned& low) {
        high = word & 0xffffe000u;
        const float rest = __int_as_float((int)word) - __int_as_float((int)high);
        low = (unsigned)__float_as_int(fmaxf(rest, -7.9228163e28f));  // -2^96; NaN is dropped
    }
    static DEVICE_MEMBER A a(const unsigned (&words)[4]) {
        A a;
#pragma unroll
        for (int i = 0; i < 4; ++i) divide(words[i], a.high[i], a.low[i]);
        return a;
    }
    static DEVICE_MEMBER B b(const unsigned (&words)[2]) {
        B b;
#pragma unroll
        for (int i = 0; i < 2; ++i) divide(words[i], b.high[i], b.low[i]);
        return b;
    }
    static DEVICE_MEMBER void multiply(float (&d)[4], const A& a, const B& b) {
        product_tf32(d, a.low, b.high);
        product_tf32(d, a.high, b.low);
        product_tf32(d, a.high, b.high);
    }
};

}  // namespace mma
