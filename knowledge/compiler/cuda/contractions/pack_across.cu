// Brings operand @WHICH@ of @KERNEL@ into tiles: neighbours in memory are rows of different k, a thread takes 128 bytes of a
// row.
extern "C" __global__ void __launch_bounds__(256) @KERNEL@_pack_@WHICH@(@PARAMETERS@) {
    using Precision = wgmma::@PRECISION@;
    constexpr int PIECE = 16 / Precision::BYTES;  // elements
    const long long item = (long long)blockIdx.x * 256 + threadIdx.x;
    if (item >= (long long)@ROWS@ * @STEPS@) return;
    const long long row = item / @PADDED@ / @STEPS@ * @PADDED@ + item % @PADDED@;
    const int step = (int)(item / @PADDED@ % @STEPS@);
    const @INDEX@ @OUT@ = (@INDEX@)(row % @PADDED@);
@BATCH@
    for (int piece = step * 8; piece < step * 8 + 8; ++piece) {
        Vec<float, 1> held[PIECE] = {};
#pragma unroll
        for (int i = 0; i < PIECE; ++i) {
            const @INDEX@ k = piece * PIECE + i;
            if (k < @K@ && @OUT@ < @SIZE@) {
@READ_ONE@
            }
        }
        Vec<Precision::Element, PIECE> packed;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) packed.at[e] = Precision::pack(held[e].at[0]);
        unsigned char* const to = pack::place<@TILE@, @STEPS@>(packed_@WHICH@, row, piece);
        store_vec<PIECE>(reinterpret_cast<Precision::Element*>(to), packed);
    }
}
