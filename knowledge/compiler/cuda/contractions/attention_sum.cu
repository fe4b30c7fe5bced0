// The parts of @NAME@ over different keys, each relative to its own highest score, as one: a warp a row.
extern "C" __global__ void __launch_bounds__(128) @NAME@_sum(@PARAMETERS@) {
    constexpr int SPLITS = @SPLITS@, VALUE = @VALUE@;
    const int lane = threadIdx.x % 32;
    const @INDEX@ point = (@INDEX@)blockIdx.x * 4 + threadIdx.x / 32;
    if (point >= @POINTS@) return;
@PLACE@
    const float* const tops = partial + (@INDEX@)SPLITS * @POINTS@ * VALUE;
    const float* const totals = tops + SPLITS * @POINTS@;
    const float top = lane < SPLITS ? tops[lane * (@INDEX@)@POINTS@ + point] : -FOUNDRY_INF;
    float highest = top;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, mask));
    const float share = mma::power_of_two((top - (highest == -FOUNDRY_INF ? 0.0f : highest)) * @UNIT@);
    float whole = lane < SPLITS ? totals[lane * (@INDEX@)@POINTS@ + point] * share : 0.0f;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) whole += __shfl_xor_sync(0xffffffffu, whole, mask);
#pragma unroll
    for (int first = 0; first < VALUE; first += 32) {
        const @INDEX@ d = first + lane;
        float sum = 0;
#pragma unroll 4
        for (int split = 0; split < SPLITS; ++split) {
            const float part = d < VALUE ? partial[(split * (@INDEX@)@POINTS@ + point) * VALUE + d] : 0.0f;
            sum = __fmaf_rn(part, __shfl_sync(0xffffffffu, share, split), sum);
        }
        if (d < VALUE) {
            const float result = sum / (whole == 0.0f ? @NONE@ : whole);  // a total of 0: all masked
@STORE@
        }
    }
}
