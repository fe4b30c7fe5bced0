// Brings operand @WHICH@ of @KERNEL@ into tiles: its rows lie along k in memory and are long, a block takes 1024 pieces of one.
extern "C" __global__ void __launch_bounds__(256) @KERNEL@_pack_@WHICH@(@PARAMETERS@) {
    using Precision = wgmma::@PRECISION@;
    constexpr int PIECE = 16 / Precision::BYTES;  // elements
    const long long row = (long long)(blockIdx.x / @PARTS@);  // of all batches, each padded to whole tiles
    const int part = (int)(blockIdx.x % @PARTS@);
    const @INDEX@ @OUT@ = (@INDEX@)(row % @PADDED@);
@BATCH@
    using Largest = Extreme<float, true>;
    SHARED_STATES(Largest, partials, 8);
    Largest largest;
    largest.value = 0.0f;
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) {
        const int piece = part * 1024 + turn * 256 + threadIdx.x;
        Vec<float, @VECTOR@> held[PIECE / @VECTOR@] = {};
#pragma unroll
        for (int i = 0; i < PIECE / @VECTOR@; ++i) {
            const @INDEX@ k = piece * (@INDEX@)PIECE + i * @VECTOR@;
            if (k < @K@ && @OUT@ < @SIZE@) {
@READ@
            }
        }
        Vec<Precision::Element, PIECE> high, low;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) {
            const float value = held[e / @VECTOR@].at[e % @VECTOR@];
            largest.add(pack::finite(value));
            high.at[e] = @PACK@(value * pack::power(@GUESS@));
            low.at[e] = Precision::pack(pack::rest<Precision>(value * pack::power(@GUESS@), high.at[e]));
        }
        if (piece < @STEPS@ * 8) {
            unsigned char* const to = pack::place<@TILE@, @STEPS@>(packed_@WHICH@, row, piece);
            store_vec<PIECE>(reinterpret_cast<Precision::Element*>(to), high);
            if (@HAS_LOW@) store_vec<PIECE>(reinterpret_cast<Precision::Element*>(to + @LOW@LL), low);
        }
    }
    largest = reduce_block<8>(largest, partials);
    if (threadIdx.x == 0) peaks_@WHICH@[part * (long long)@ROWS@ + row] = largest.value;
}
