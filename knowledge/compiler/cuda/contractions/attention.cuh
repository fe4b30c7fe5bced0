// What attention on tensor cores needs beside the products: rows of a head in shared memory as they lie in global
// memory, and their fragments. The PTX instructions stand behind inline functions; where no NVIDIA compiler reads this,
// whoever compiles it supplies functions of the same names.
namespace mma {

#if defined(__CUDACC__)
DEVICE float power_of_two(float x) {  // 2^x to 2 units in the last place; 0 for -infinity
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Four matrices of 8 rows of 16 bytes; lane l names row l % 8 of matrix l / 8, and gets word l % 4 of row l / 4 of each.
DEVICE void four_matrices(unsigned (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}
// The same turned, of 16-bit elements: a lane gets of column l / 4 the rows 2 (l % 4) and the next.
DEVICE void four_matrices_turned(unsigned (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}
#endif

// BYTES of a row on their way to shared memory: without waiting, where a copy can be that narrow.
template <int BYTES> DEVICE void bring(void* to, const void* from, bool is_there) {
    if constexpr (BYTES >= 4) async::copy<BYTES>(to, from, is_there);
    else *static_cast<unsigned short*>(to) = is_there ? *static_cast<const unsigned short*>(from) : (unsigned short)0;
}

// Which item of which row a thread copies in a round: always the same item where that is possible, so that from one round
// to the next addresses differ by a constant.
template <int ITEMS, int THREADS> DEVICE void place(int round, int& row, int& item) {
    const int flat = threadIdx.x + (THREADS % ITEMS ? round * THREADS : 0);
    row = flat / ITEMS + (THREADS % ITEMS ? 0 : round * (THREADS / ITEMS)), item = flat % ITEMS;
}

// Rows of WIDTH elements, 16 bytes apart beyond their own length, so that eight of them lie in 32 banks. The elements
// are those of global memory: what rounds float32 for the tensor cores does so where a fragment is read.
template <class P, int WIDTH> struct Rows {
    static constexpr int PITCH = WIDTH / P::PER_WORD + 4;
    static constexpr int ITEM_BYTES = 4 / P::PER_WORD;

    static DEVICE_MEMBER unsigned char* at(unsigned* tile, int row, int element) {
        return reinterpret_cast<unsigned char*>(tile + row * PITCH) + element * ITEM_BYTES;
    }
    static DEVICE_MEMBER unsigned ready(unsigned word) {
        if constexpr (P::PER_WORD == 1) return P::pack(__int_as_float((int)word));
        else return word;
    }
    // Queries row .. row + 15, DEPTH elements from `k` on, as words of the left operand.
    static DEVICE_MEMBER void left(unsigned (&words)[4], const unsigned* tile, int row, int k, int lane) {
        const int in = lane % 8 + lane / 8 % 2 * 8, word = k / P::PER_WORD + lane / 16 * 4;
        four_matrices(words, tile + (row + in) * PITCH + word);
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = ready(words[i]);
    }
    // Keys row .. row + 15, DEPTH elements from `k` on: words of two right operands, eight columns each.
    static DEVICE_MEMBER void right(unsigned (&words)[4], const unsigned* tile, int row, int k, int lane) {
        const int in = lane % 8 + lane / 16 * 8, word = k / P::PER_WORD + lane / 8 % 2 * 4;
        four_matrices(words, tile + (row + in) * PITCH + word);
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = ready(words[i]);
    }
    // Values of DEPTH keys from `row` on, elements d .. d + 15: words of two right operands, eight columns each. Words of
    // float32 stand as `weights` orders the keys.
    static DEVICE_MEMBER void across(unsigned (&words)[4], const unsigned* tile, int row, int d, int lane) {
        if constexpr (P::PER_WORD == 2) {
            const int in = lane % 8 + lane / 8 % 2 * 8;
            four_matrices_turned(words, tile + (row + in) * PITCH + d / 2 + lane / 16 * 4);
        } else {
            const unsigned* const from = tile + (row + lane % 4 * 2) * PITCH + d + lane / 4;
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i] = ready(from[i % 2 * PITCH + i / 2 * 8]);
        }
    }
};

// DEPTH columns of a result, which a lane holds in pairs, as words of the left operand of the next product. In TF32 a
// pair gives keys q and q + 4 of the product, so that no lane needs what another one holds.
template <class P> DEVICE void weights(unsigned (&words)[4], const float (*d)[4]) {
    if constexpr (P::PER_WORD == 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = P::pair(d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = P::pack(d[0][i / 2 + i % 2 * 2]);
    }
}

// Scores beyond this are multiplied and rounded before the highest is taken away from them. Its own product is rounded
// to a multiple of 2 there, and what an unrounded one exceeds it by is an exponent of two: infinity from 2^31 on.
constexpr float ROUNDED_FROM = 16777216.0f;

// A row's scores in a lane, two of every eight from place `at` on, become weights relative to the highest so far, and the
// row's state follows: `rescale` is what its sums must be multiplied by. `factor` is what is left to multiply scores by,
// differences times `unit` are exponents of two.
template <int COUNT> DEVICE void weigh(float (&score)[COUNT][4], int at, float factor, float unit, float& top, float& total,
                                       float& rescale) {
    float highest = score[0][at];
#pragma unroll
    for (int h = 1; h < COUNT * 2; ++h) highest = fmaxf(highest, score[h / 2][at + h % 2]);
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
    highest = fmaxf(highest * factor, top);
    // While all keys of a row are masked there is nothing to take from its scores.
    const float shift = highest == -FOUNDRY_INF ? 0.0f : highest;
    rescale = power_of_two((top - shift) * unit);
    top = highest;
    if (factor != 1.0f && fabsf(shift) > ROUNDED_FROM) {
#pragma unroll
        for (int h = 0; h < COUNT * 2; ++h) score[h / 2][at + h % 2] = __fmul_rn(score[h / 2][at + h % 2], factor);
        factor = 1.0f;
    }
    float sum = 0;
#pragma unroll
    for (int h = 0; h < COUNT * 2; ++h) {
        float& weight = score[h / 2][at + h % 2];
        weight = power_of_two(__fmaf_rn(weight, factor, -shift) * unit);
        sum += weight;
    }
    total = __fmaf_rn(total, rescale, sum);
}

// The same for both rows of which a lane holds scores, in four independent parts: for a warp that has its multiprocessor's
// units to itself. LAZY: a row stays relative to a score that was the highest before, as long as no weight exceeds 2^8 and
// so nothing has to be multiplied.
template <bool LAZY, int COUNT> DEVICE void weigh_both(float (&score)[COUNT][4], float factor, float unit, float (&top)[2],
                                                       float (&total)[2], float (&rescale)[2]) {
    float part[4] = {score[0][0], score[0][1], score[0][2], score[0][3]}, shift[2];
#pragma unroll
    for (int h = 1; h < COUNT; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) part[i] = fmaxf(part[i], score[h][i]);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        float highest = fmaxf(part[2 * row], part[2 * row + 1]);
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
        highest = fmaxf(highest * factor, top[row]);
        if (LAZY) highest = (highest - top[row]) * unit > 8.0f ? highest : top[row];
        // While all keys of a row are masked there is nothing to take from its scores.
        shift[row] = highest == -FOUNDRY_INF ? 0.0f : highest;
        rescale[row] = power_of_two((top[row] - shift[row]) * unit);
        top[row] = highest;
    }
    if (factor != 1.0f && fmaxf(fabsf(shift[0]), fabsf(shift[1])) > ROUNDED_FROM) {
#pragma unroll
        for (int h = 0; h < COUNT; ++h)
#pragma unroll
            for (int i = 0; i < 4; ++i) score[h][i] = __fmul_rn(score[h][i], factor);
        factor = 1.0f;
    }
#pragma unroll
    for (int h = 0; h < COUNT; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            score[h][i] = power_of_two(__fmaf_rn(score[h][i], factor, -shift[i / 2]) * unit);
            part[i] = h ? part[i] + score[h][i] : score[h][i];
        }
#pragma unroll
    for (int row = 0; row < 2; ++row) total[row] = __fmaf_rn(total[row], rescale[row], part[2 * row] + part[2 * row + 1]);
}

template <class P> DEVICE typename P::B right_of(const unsigned (&words)[4], int which) {
    const unsigned two[2] = {words[2 * which], words[2 * which + 1]};
    return P::b(two);
}

}  // namespace mma
