
// Finds the scale of each row of operand @WHICH@ of @KERNEL@; where it is not the one that most rows have, packs the row again.
extern "C" __global__ void __launch_bounds__(256) @KERNEL@_repair_@WHICH@(
    @PARAMETERS@, int* __restrict__ exponents_@WHICH@) {
    using Precision = wgmma::@PRECISION@;
    __shared__ float found[8][32];
    const int place = threadIdx.x % 32, part = threadIdx.x / 32;
    const long long row = (long long)blockIdx.x * 32 + place;
    float largest = 0.0f;
    for (int i = part; i < @PARTS@; i += 8)
        largest = math::maximum(largest, peaks_@WHICH@[i * (long long)@ROWS@ + row]);
    found[part][place] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = math::maximum(largest, found[i][place]);
    const int exponent = pack::suits<@GUESS@>(largest) ? @GUESS@ : pack::exponent_for(largest);
    if (part == 0) exponents_@WHICH@[row] = -exponent;
    if (exponent == @GUESS@) return;
    const @INDEX@ @OUT@ = (@INDEX@)(row % @PADDED@);
@BATCH@
    for (@INDEX@ k = part; k < @K@; k += 8) {
        Vec<float, 1> held[1] = {};
        constexpr int i = 0;
        if (@OUT@ < @SIZE@) {
@READ_ONE@
        }
        const float value = held[0].at[0] * pack::power(exponent);
        unsigned char* const to = @PLACE@;
        const Precision::Element high = @PACK@(value), low = Precision::pack(pack::rest<Precision>(value, high));
        *reinterpret_cast<Precision::Element*>(to) = high;
        if (@HAS_LOW@) *reinterpret_cast<Precision::Element*>(to + @LOW@LL) = low;
    }
}
