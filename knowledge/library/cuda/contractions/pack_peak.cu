// The largest finite element of each row of operand @WHICH@ of @KERNEL@, in @PARTS@ parts of k, for the scales that
// @KERNEL@_pack_@WHICH@ chooses.
extern "C" __global__ void __launch_bounds__(256) @KERNEL@_peak_@WHICH@(@PARAMETERS@) {
    const long long item = (long long)blockIdx.x * 256 + threadIdx.x;
    const long long row = item % @ROWS@;
    const int part = (int)(item / @ROWS@);
    if (part >= @PARTS@) return;
    const @INDEX@ @OUT@ = (@INDEX@)(row % @PADDED@);
@BATCH@
    float largest = 0.0f;
    if (@OUT@ < @SIZE@) {
#pragma unroll 8
        for (@INDEX@ k = part * (@INDEX@)@DEPTH@; k < (part + 1) * (@INDEX@)@DEPTH@; ++k) {
            if (k < @K@) {
                Vec<float, 1> held[1];
                constexpr int i = 0;
@READ@
                largest = math::maximum(largest, pack::finite(held[0].at[0]));
            }
        }
    }
    peaks_@WHICH@[item] = largest;
}
