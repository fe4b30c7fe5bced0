// Brings operand @WHICH@ of @KERNEL@ into tiles of boxes: its rows lie across k in memory, and so they do in a box of 64 of
// them by 64 of k, which a block packs. A thread takes eight neighbours at two places of k.
extern "C" __global__ void __launch_bounds__(256) @KERNEL@_pack_@WHICH@(@PARAMETERS@) {
    using Precision = wgmma::@PRECISION@;
    const int step = (int)(blockIdx.x / (@ROWS@ / 64));
    const long long first_row = (long long)(blockIdx.x % (@ROWS@ / 64)) * 64;  // of all batches, each padded to whole tiles
    const int octet = threadIdx.x % 8, warp = threadIdx.x / 32;
    const long long row = first_row + octet * 8;
    const @INDEX@ first_@OUT@ = (@INDEX@)(row % @PADDED@);
@BATCH@
    float value[2][8];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        const @INDEX@ k = step * (@INDEX@)64 + part * 32 + threadIdx.x / 8;
        Vec<float, @VECTOR@> held[8 / @VECTOR@] = {};
#pragma unroll
        for (int i = 0; i < 8 / @VECTOR@; ++i) {
            const @INDEX@ @OUT@ = first_@OUT@ + i * @VECTOR@;
            if (k < @K@ && @OUT@ < @SIZE@) {
@READ@
            }
        }
        Vec<Precision::Element, 8> high, low;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            value[part][e] = held[e / @VECTOR@].at[e % @VECTOR@];
            high.at[e] = @PACK@(value[part][e] * pack::power(@GUESS@));
            low.at[e] = Precision::pack(pack::rest<Precision>(value[part][e] * pack::power(@GUESS@), high.at[e]));
        }
        unsigned char* const to = pack::place_across<@TILE@, @STEPS@>(packed_@WHICH@, row, k);
        store_vec<8>(reinterpret_cast<Precision::Element*>(to), high);
        if (@HAS_LOW@) store_vec<8>(reinterpret_cast<Precision::Element*>(to + @LOW@LL), low);
    }
@KEEP_PEAK@
}
