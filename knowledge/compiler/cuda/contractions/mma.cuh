// Matrix products of one warp on tensor cores: operands in shared memory, and the fragments that a lane reads of them.
// A precision (mma_tf32.cuh, mma_sixteen.cuh) says how an element lies there: `PER_WORD` neighbours of k in 32 bits,
// `DEPTH` of k in one product; `DRAINED`: sums leave the tensor cores after every tile and are added up in float32.
// Fragments are those of the PTX ISA, "Matrix fragments for mma.m16n8k8" and "... mma.m16n8k16": with g = lane / 4 and
// q = lane % 4, a lane holds of A rows g and g + 8, of B column g, of the result rows g and g + 8, columns 2q and 2q + 1.
namespace mma {

// An operand's tile in shared memory: OUT rows of m (or n) by K of k, the side by side axis being k or the other one.
// Rows are padded so that the 32 words of a fragment lie in 32 banks: a multiple of 8, plus 4, words between rows of
// k; a multiple of 32, plus 8, between rows of m.
template <class P, int OUT, int K, bool ALONG_K> struct Operand {
    static constexpr int PITCH = ALONG_K ? K / P::PER_WORD + 4 : OUT + 8;
    static constexpr int WORDS = (ALONG_K ? OUT : K / P::PER_WORD) * PITCH;

    template <int N> static DEVICE_MEMBER void keep(unsigned* tile, int out, int k, const Vec<float, N>& value) {
        if constexpr (P::PER_WORD == 1) {
            Vec<unsigned, N> words;
#pragma unroll
            for (int i = 0; i < N; ++i) words.at[i] = P::pack(value.at[i]);
            store_vec<N>(tile + (ALONG_K ? out * PITCH + k : k * PITCH + out), words);
        } else if constexpr (ALONG_K) {
            Vec<unsigned short, N> halves;
#pragma unroll
            for (int i = 0; i < N; ++i) halves.at[i] = P::pack(value.at[i]);
            store_vec<N>(reinterpret_cast<unsigned short*>(tile + out * PITCH) + k, halves);
        } else {
            unsigned short* const to = reinterpret_cast<unsigned short*>(tile + k / 2 * PITCH + out) + k % 2;
#pragma unroll
            for (int i = 0; i < N; ++i) to[2 * i] = P::pack(value.at[i]);
        }
    }
    static DEVICE_MEMBER unsigned word(const unsigned* tile, int out, int at) {  // `at` counts words of k
        return tile[ALONG_K ? out * PITCH + at : at * PITCH + out];
    }
    static DEVICE_MEMBER typename P::A fragment_a(const unsigned* tile, int m, int k, int lane) {
        const int row = m + lane / 4, at = k / P::PER_WORD + lane % 4;
        const unsigned words[4] = {word(tile, row, at), word(tile, row + 8, at), word(tile, row, at + 4),
                                   word(tile, row + 8, at + 4)};
        return P::a(words);
    }
    static DEVICE_MEMBER typename P::B fragment_b(const unsigned* tile, int n, int k, int lane) {
        const int column = n + lane / 4, at = k / P::PER_WORD + lane % 4;
        const unsigned words[2] = {word(tile, column, at), word(tile, column, at + 4)};
        return P::b(words);
    }
};

DEVICE float (&four(float* first))[4] { return *reinterpret_cast<float (*)[4]>(first); }

// A lane's two pairs of a 16 x 8 result become four neighbours of one row, row lane / 4 (+ 8 for odd lanes), from
// column lane % 4 / 2 * 4: even lanes give their lower pair for the upper pair of the next one.
DEVICE void side_by_side(float (&d)[4], int lane) {
    const bool odd = lane & 1;
    const float first = __shfl_xor_sync(0xffffffffu, odd ? d[0] : d[2], 1);
    const float second = __shfl_xor_sync(0xffffffffu, odd ? d[1] : d[3], 1);
    if (odd) d[0] = first, d[1] = second;
    else d[2] = first, d[3] = second;
}

}  // namespace mma
