// Pieces of the packed input of @NAME@, step by step: where each is read from a window's begin (-1 behind the last tap).
__device__ const int @NAME@_reads[@PIECES@] = {@READS@};
// Which tap of the weights a piece meets (-1 behind the last one), and its first channel.
__device__ const int @NAME@_taps[@PIECES@] = {@TAPS@};
__device__ const int @NAME@_channels[@PIECES@] = {@CHANNELS@};
@LOW_TABLE@
// One place of an image, padding included, in its packed form: @PART@ pieces of channels from `chunk`. Returns the largest
// finite magnitude.
DEVICE float @NAME@_part(const @X_TYPE@* __restrict__ b_@X@, unsigned char* packed, int photo, int chunk, int spot, float scale) {
    using Precision = wgmma::@PRECISION@;
    constexpr int PIECE = 16 / Precision::BYTES;
    const int l2 = spot % @P2@ - @LEAD2@, l1 = spot / @P2@ % @P1@ - @LEAD1@, l0 = spot / @P2@ / @P1@ - @LEAD0@;
    const bool inside = (unsigned)l0 < @IN0@u && (unsigned)l1 < @IN1@u && (unsigned)l2 < @IN2@u;
    const @X_TYPE@* const from = @ORIGIN@ + ((@INSIDE@)l0 * @STRIDE0@ + (@INSIDE@)l1 * @STRIDE1@ + (@INSIDE@)l2 * @STRIDE2@);
    unsigned char* const to = packed + (((long long)photo * @SPOTS@ + spot) * @POINT@ + chunk * @PART@) * 16;
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < @PART@; ++i) {
        const int group = (chunk * @PART@ + i) / @PIECES_GROUP@, first = (chunk * @PART@ + i) % @PIECES_GROUP@ * PIECE;
        Vec<typename Precision::Element, PIECE> high, low;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) {
            float value = 0.0f;
            if (inside && first + e < @C@) {
                const @X_TYPE@ found = from[(@INSIDE@)(group * @C@ + first + e) * @STRIDE_C@];
                value = @FOUND@;
            }
            largest = math::maximum(largest, pack::finite(value));
            value *= scale;
            high.at[e] = @PACK@(value);
            low.at[e] = Precision::pack(pack::rest<Precision>(value, high.at[e]));
        }
        store_vec<PIECE>(reinterpret_cast<typename Precision::Element*>(to + i * 16), high);
        if (@HAS_LOW@) store_vec<PIECE>(reinterpret_cast<typename Precision::Element*>(to + i * 16 + @LOW_BYTES@LL), low);
    }
    return largest;
}

// Brings the input into channels-last order with its padding, times 2^@GUESS@, and keeps what each block found largest.
extern "C" __global__ void __launch_bounds__(256) @NAME@_pack(@PACK_PARAMETERS@) {
    const int spot = (int)(blockIdx.x % @SPOT_BLOCKS@) * 256 + threadIdx.x;
    const int chunk = (int)(blockIdx.x / @SPOT_BLOCKS@ % @CHUNKS@), photo = (int)(blockIdx.x / (@SPOT_BLOCKS@ * @CHUNKS@));
    Extreme<float, true> largest;
    largest.value = 0.0f;
    if (spot < @SPOTS@) largest.value = @NAME@_part(b_@X@, packed, photo, chunk, spot, pack::power(@GUESS@));
@KEEP_PEAK@
}
@REPAIR@
// Brings the weights into tiles: rows of @BN@ output channels, 128 bytes of (tap, input channel) each, a warp takes a row.
extern "C" __global__ void __launch_bounds__(256) @NAME@_weights(@WEIGHT_PARAMETERS@) {
    using Precision = wgmma::@PRECISION@;
    constexpr int PIECE = 16 / Precision::BYTES;
    const int row = (int)(blockIdx.x * 8 + threadIdx.x / 32), lane = threadIdx.x % 32;
    if (row >= @WEIGHT_ROWS@) return;
    const int group = row / @PADDED_N@, n = row % @PADDED_N@;
    const auto read = [&](int at, int e) {
        const int c = @NAME@_channels[at] + e;
        if (@NAME@_taps[at] < 0 || c >= @C@ || n >= @N@) return 0.0f;
        const @W_TYPE@ found = weight[@WEIGHT_AT@];
        return (float)@FOUND_WEIGHT@;
    };
@WEIGHT_SCALE@
    for (int at = lane; at < @PIECES@; at += 32) {
        Vec<typename Precision::Element, PIECE> piece;
#pragma unroll
        for (int e = 0; e < PIECE; ++e) {
            const float value = read(at, e)@TIMES@;
            piece.at[e] = @PACK@(value);
            if (@IS_LOW@) piece.at[e] = Precision::pack(pack::rest<Precision>(value, piece.at[e]));
        }
        const long long tile = ((long long)group * @ALL_STEPS@ + at / 8) * @TILES_N@ + n / @BN@;
        unsigned char* const to = weights + (tile * @BN@ + n % @BN@) * 128 + (at % 8 ^ n % 8) * 16;
        store_vec<PIECE>(reinterpret_cast<typename Precision::Element*>(to), piece);
    }
}
