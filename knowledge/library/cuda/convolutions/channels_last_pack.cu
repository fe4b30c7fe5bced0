// Pieces of the packed input of @NAME@, step by step: where each is read from a window's begin (-1 behind the last tap).
__device__ const int @NAME@_reads[@PIECES@] = {@READS@};
// Which tap of the weights a piece meets (-1 behind the last one), and its first channel.
__device__ const int @NAME@_taps[@PIECES@] = {@TAPS@};
__device__ const int @NAME@_channels[@PIECES@] = {@CHANNELS@};
@LOW_TABLE@
// Piece `piece` of the channels at place `spot` of an image, padding included, times `scale`, in 16 bits or TF32 (`low`: what
// these do not hold). Returns the largest finite magnitude.
DEVICE float @NAME@_piece(const @X_TYPE@* __restrict__ b_@X@, int photo, int piece, int spot, float scale,
                          Vec<wgmma::@PRECISION@::Element, 16 / wgmma::@PRECISION@::BYTES>& high,
                          Vec<wgmma::@PRECISION@::Element, 16 / wgmma::@PRECISION@::BYTES>& low) {
    using Precision = wgmma::@PRECISION@;
    constexpr int PIECE = 16 / Precision::BYTES;
    const int l2 = spot % @P2@ - @LEAD2@, l1 = spot / @P2@ % @P1@ - @LEAD1@, l0 = spot / @P2@ / @P1@ - @LEAD0@;
    const bool inside = spot < @SPOTS@ && (unsigned)l0 < @IN0@u && (unsigned)l1 < @IN1@u && (unsigned)l2 < @IN2@u;
    const @X_TYPE@* const from = @ORIGIN@ + ((@INSIDE@)l0 * @STRIDE0@ + (@INSIDE@)l1 * @STRIDE1@ + (@INSIDE@)l2 * @STRIDE2@);
    const int group = piece / @PIECES_GROUP@, first = piece % @PIECES_GROUP@ * PIECE;
    float largest = 0.0f;
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
    return largest;
}

// Brings the input into channels-last order with its padding, times 2^@GUESS@, and keeps what each block found largest.
// Neighbouring threads read neighbours of the input's last axis, and write neighbouring pieces of a place.
extern "C" __global__ void __launch_bounds__(256) @NAME@_pack(@PACK_PARAMETERS@) {
    using Precision = wgmma::@PRECISION@;
    constexpr int PIECE = 16 / Precision::BYTES, PART = @PART@, PLACES = 256 / PART;
    using Piece = Vec<Precision::Element, PIECE>;
    __shared__ Piece turned[@PARTS@][256];
    const int first_spot = (int)(blockIdx.x % @SPOT_BLOCKS@) * PLACES;
    const int chunk = (int)(blockIdx.x / @SPOT_BLOCKS@ % @CHUNKS@), photo = (int)(blockIdx.x / (@SPOT_BLOCKS@ * @CHUNKS@));
    const int place = threadIdx.x % PLACES, piece = threadIdx.x / PLACES;
    Extreme<float, true> largest;
    Piece high, low;
    largest.value =
        @NAME@_piece(b_@X@, photo, chunk * PART + piece, first_spot + place, pack::power(@GUESS@), high, low);
    const int at = place * PART + (piece ^ place % PART);
    turned[0][at] = high;
    if (@HAS_LOW@) turned[@PARTS@ - 1][at] = low;
    __syncthreads();
    const int spot = first_spot + threadIdx.x / PART, from = threadIdx.x ^ threadIdx.x / PART % PART;
    if (spot < @SPOTS@) {
        unsigned char* const to =
            packed + (((long long)photo * @SPOTS@ + spot) * @POINT@ + chunk * PART + threadIdx.x % PART) * 16;
        *reinterpret_cast<Piece*>(to) = turned[0][from];
        if (@HAS_LOW@) *reinterpret_cast<Piece*>(to + @LOW_BYTES@LL) = turned[@PARTS@ - 1][from];
    }
@KEEP_PEAK@
}

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
