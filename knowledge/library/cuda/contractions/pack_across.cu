// One row's 128 bytes of k of operand @WHICH@ of @KERNEL@, times `scale`; returns the largest finite magnitude.
DEVICE float @KERNEL@_row_@WHICH@(@PARAMETERS@, long long row, int step, float scale) {
    using Precision = wgmma::@PRECISION@;
    constexpr int PIECE = 16 / Precision::BYTES;  // elements
    const @INDEX@ @OUT@ = (@INDEX@)(row % @PADDED@);
@BATCH@
    float largest = 0.0f;
    for (int piece = step * 8; piece < step * 8 + 8; ++piece) {
        Vec<float, 1> held[PIECE] = {};
#pragma unroll
        for (int i = 0; i < PIECE; ++i) {
            const @INDEX@ k = piece * PIECE + i;
            if (k < @K@ && @OUT@ < @SIZE@) {
@READ@
            }
        }
        Vec<Precision::Element, PIECE> high, low;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) {
            largest = math::maximum(largest, pack::finite(held[e].at[0]));
            high.at[e] = @PACK@(held[e].at[0] * scale);
            low.at[e] = Precision::pack(pack::rest<Precision>(held[e].at[0] * scale, high.at[e]));
        }
        unsigned char* const to = pack::place<@TILE@, @STEPS@>(packed_@WHICH@, row, piece);
        store_vec<PIECE>(reinterpret_cast<Precision::Element*>(to), high);
        if (@HAS_LOW@) store_vec<PIECE>(reinterpret_cast<Precision::Element*>(to + @LOW@LL), low);
    }
    return largest;
}

// Brings operand @WHICH@ of @KERNEL@ into tiles: neighbours in memory are rows of different k, a thread takes 128 bytes of a
// row.
extern "C" __global__ void __launch_bounds__(256) @KERNEL@_pack_@WHICH@(@PARAMETERS@@PEAKS@) {
    const long long item = (long long)blockIdx.x * 256 + threadIdx.x;
    if (item >= (long long)@ROWS@ * @STEPS@) return;
    const long long row = item / @PADDED@ / @STEPS@ * @PADDED@ + item % @PADDED@;
    const int step = (int)(item / @PADDED@ % @STEPS@);
    const float largest = @KERNEL@_row_@WHICH@(@ARGUMENTS@, row, step, pack::power(@GUESS@));
@KEEP_PEAK@
}
