// One row's 128 bytes of k of operand @WHICH@ of @KERNEL@, times `scale`; returns the largest finite magnitude.
DEVICE float @KERNEL@_row_@WHICH@(@PARAMETERS@, long long row, int step, float scale) {
    constexpr int PIECE = 16 / wgmma::@PRECISION@::BYTES;  // elements
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
        Vec<wgmma::@PRECISION@::Element, PIECE> packed;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) {
            largest = math::maximum(largest, pack::finite(held[e].at[0]));
            packed.at[e] = wgmma::@PRECISION@::pack(held[e].at[0] * scale);
        }
        store_vec<PIECE>(
            reinterpret_cast<wgmma::@PRECISION@::Element*>(pack::place<@TILE@, @STEPS@>(packed_@WHICH@, row, piece)), packed);
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
