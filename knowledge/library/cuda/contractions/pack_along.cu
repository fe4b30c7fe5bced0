// Brings operand @WHICH@ of @KERNEL@ into tiles: its rows lie along k in memory, a warp takes one.
extern "C" __global__ void __launch_bounds__(256) @KERNEL@_pack_@WHICH@(@PARAMETERS@) {
    constexpr int PIECE = 16 / wgmma::@PRECISION@::BYTES;  // elements
    const long long row = (long long)blockIdx.x * 8 + threadIdx.x / 32;  // of all batches, each padded to whole tiles
    const int lane = threadIdx.x % 32;
    if (row >= @ROWS@) return;
    const @INDEX@ @OUT@ = (@INDEX@)(row % @PADDED@);
@BATCH@
    const auto fetch = [&](int first, float (&value)[PIECE]) {
        Vec<float, @VECTOR@> held[PIECE / @VECTOR@] = {};
#pragma unroll
        for (int i = 0; i < PIECE / @VECTOR@; ++i) {
            const @INDEX@ k = first + i * @VECTOR@;
            if (k < @K@ && @OUT@ < @SIZE@) {
@READ@
            }
        }
#pragma unroll
        for (int e = 0; e < PIECE; ++e) value[e] = held[e / @VECTOR@].at[e % @VECTOR@];
    };
@SCALE@
    for (int piece = lane; piece < @STEPS@ * 8; piece += 32) {
        float value[PIECE];
        fetch(piece * PIECE, value);
        Vec<wgmma::@PRECISION@::Element, PIECE> packed;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) packed.at[e] = wgmma::@PRECISION@::pack(value[e]@TIMES@);
        store_vec<PIECE>(
            reinterpret_cast<wgmma::@PRECISION@::Element*>(pack::place<@TILE@, @STEPS@>(packed_@WHICH@, row, piece)), packed);
    }
}
