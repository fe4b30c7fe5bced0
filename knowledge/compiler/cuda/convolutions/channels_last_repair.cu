// Where 2^@GUESS@ does not bring an image's largest element into range, packs the image again with a scale that does.
extern "C" __global__ void __launch_bounds__(256) @NAME@_repair(
    const @X_TYPE@* __restrict__ b_@X@, unsigned char* __restrict__ packed, const float* __restrict__ peaks,
    int* __restrict__ exponents_x) {
    using Largest = Extreme<float, true>;
    SHARED_STATES(Largest, partials, 8);
    const int photo = (int)(blockIdx.x / @REPAIRERS@), part = (int)(blockIdx.x % @REPAIRERS@);
    Extreme<float, true> largest;
    largest.value = 0.0f;
    const int blocks = @PACK_BLOCKS@, point = @POINT@, each = @PIECES_GROUP@, channels = @C@;
    for (int i = threadIdx.x; i < blocks; i += 256) largest.add(peaks[(long long)photo * blocks + i]);
    const float peak = reduce_block<8>(largest, partials).value;
    const bool fits = pack::suits<@GUESS@>(peak);
    const int exponent = fits ? @GUESS@ : pack::exponent_for(peak);
    if (part == 0 && threadIdx.x == 0) exponents_x[photo] = -exponent;
    if (fits) return;
    using Precision = wgmma::@PRECISION@;
    using Piece = Vec<Precision::Element, 16 / Precision::BYTES>;
    const @X_TYPE@* const from = @ORIGIN@;
    for (int item = part * 256 + threadIdx.x; item < @SPOTS@ * point; item += @REPAIRERS@ * 256) {
        const int spot = item / point, piece = item % point;
        Piece high, low;
        @NAME@_piece(from, channels, each, piece, spot, pack::power(exponent), high, low);
        unsigned char* const to = packed + ((long long)photo * @SPOTS@ * point + item) * 16;
        *reinterpret_cast<Piece*>(to) = high;
        if (@HAS_LOW@) *reinterpret_cast<Piece*>(to + @LOW_BYTES@LL) = low;
    }
}
