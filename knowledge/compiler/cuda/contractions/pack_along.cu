// Brings operand @WHICH@ of @KERNEL@ into tiles: its rows lie along k in memory, @TEAM@ threads take one.
extern "C" __global__ void __launch_bounds__(256) @KERNEL@_pack_@WHICH@(@PARAMETERS@) {
    using Precision = wgmma::@PRECISION@;
    constexpr int PIECE = 16 / Precision::BYTES;  // elements
    constexpr int TEAM = @TEAM@, HELD = @HELD@;  // pieces that a thread keeps while the row's scale is found
    const long long row = (long long)blockIdx.x * (256 / TEAM) + threadIdx.x / TEAM;  // of all batches, each padded to whole tiles
    const int member = threadIdx.x % TEAM;
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
    const auto keep = [&](int piece, const float (&value)[PIECE], float scale) {
        Vec<Precision::Element, PIECE> high, low;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) {
            high.at[e] = @PACK@(value[e] * scale);
            low.at[e] = Precision::pack(pack::rest<Precision>(value[e] * scale, high.at[e]));
        }
        unsigned char* const to = pack::place<@TILE@, @STEPS@>(packed_@WHICH@, row, piece);
        store_vec<PIECE>(reinterpret_cast<Precision::Element*>(to), high);
        if (@HAS_LOW@) store_vec<PIECE>(reinterpret_cast<Precision::Element*>(to + @LOW@LL), low);
    };
    float value[HELD ? HELD : 1][PIECE];
    float scale = 1.0f;
#pragma unroll
    for (int i = 0; i < HELD; ++i) fetch((member + i * TEAM) * PIECE, value[i]);
@SCALE@
#pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (member + i * TEAM < @STEPS@ * 8) keep(member + i * TEAM, value[i], scale);
    if (HELD == 0)
        for (int piece = member; piece < @STEPS@ * 8; piece += TEAM) {
            fetch(piece * PIECE, value[0]);
            keep(piece, value[0], scale);
        }
}
