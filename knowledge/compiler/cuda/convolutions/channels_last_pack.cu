// Pieces of the packed input of @NAME@, step by step: where each is read from a window's begin (-1 behind the last tap).
__device__ const int @NAME@_reads[@PIECES@] = {@READS@};
@TAP_TABLES@
@LOW_TABLE@
// Piece `piece` of the channels at place `spot` of the image at `from`, padding included, times `scale`, in 16 bits or TF32
// (`low`: what these do not hold); a group has `channels`, in `each` pieces. Returns the largest finite magnitude.
DEVICE float @NAME@_piece(const @X_TYPE@* __restrict__ from, int channels, int each, int piece, int spot, float scale,
                          Vec<wgmma::@PRECISION@::Element, 16 / wgmma::@PRECISION@::BYTES>& high,
                          Vec<wgmma::@PRECISION@::Element, 16 / wgmma::@PRECISION@::BYTES>& low) {
    using Precision = wgmma::@PRECISION@;
    constexpr int PIECE = 16 / Precision::BYTES;
    const int l2 = spot % @P2@ - @LEAD2@, l1 = spot / @P2@ % @P1@ - @LEAD1@, l0 = spot / @P2@ / @P1@ - @LEAD0@;
    const bool inside = spot < @SPOTS@ && (unsigned)l0 < @IN0@u && (unsigned)l1 < @IN1@u && (unsigned)l2 < @IN2@u;
    const int group = piece / each, first = piece % each * PIECE;
    from += (@INSIDE@)l0 * @STRIDE0@ + (@INSIDE@)l1 * @STRIDE1@ + (@INSIDE@)l2 * @STRIDE2@;
    float largest = 0.0f;
#pragma unroll
    for (int e = 0; e < PIECE; ++e) {
        float value = 0.0f;
        if (inside && first + e < channels) {
            const @X_TYPE@ found = from[(@INSIDE@)(group * channels + first + e) * @STRIDE_C@];
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
    const int chunks = @CHUNKS@, each = @PIECES_GROUP@, channels = @C@;
    const int first_spot = (int)(blockIdx.x % @SPOT_BLOCKS@) * PLACES;
    const int chunk = (int)(blockIdx.x / @SPOT_BLOCKS@ % chunks), photo = (int)(blockIdx.x / (@SPOT_BLOCKS@ * chunks));
    const @X_TYPE@* const from = @ORIGIN@;
    const int place = threadIdx.x % PLACES, piece = threadIdx.x / PLACES;
    Extreme<float, true> largest;
    Piece high, low;
    largest.value = @NAME@_piece(from, channels, each, chunk * PART + piece, first_spot + place, pack::power(@GUESS@), high, low);
    const int at = place * PART + (piece ^ place % PART);
    turned[0][at] = high;
    if (@HAS_LOW@) turned[@PARTS@ - 1][at] = low;
    __syncthreads();
    const int spot = first_spot + threadIdx.x / PART, back = threadIdx.x ^ threadIdx.x / PART % PART;
    if (spot < @SPOTS@) {
        unsigned char* const to =
            packed + (((long long)photo * @SPOTS@ + spot) * @POINT@ + chunk * PART + threadIdx.x % PART) * 16;
        *reinterpret_cast<Piece*>(to) = turned[0][back];
        if (@HAS_LOW@) *reinterpret_cast<Piece*>(to + @LOW_BYTES@LL) = turned[@PARTS@ - 1][back];
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
    const int pieces = @PIECES@;
@PIECES_OF_TAP@
    const auto read = [&](int at, int e) {
        const int tap = @TAP@, c = @CHANNEL@ + e;
        if (tap < 0 || c >= @C@ || n >= @N@) return 0.0f;
        const @W_TYPE@ found = weight[@WEIGHT_AT@];
        return (float)@FOUND_WEIGHT@;
    };
@WEIGHT_SCALE@
    for (int at = lane; at < pieces; at += 32) {
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
