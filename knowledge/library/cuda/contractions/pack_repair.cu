
// Finds the scale of each row of operand @WHICH@ of @KERNEL@; where it is not the one that most rows have, packs the row again.
extern "C" __global__ void __launch_bounds__(256) @KERNEL@_repair_@WHICH@(
    @PARAMETERS@, const float* __restrict__ peaks_@WHICH@, int* __restrict__ exponents_@WHICH@) {
    __shared__ float found[8][32];
    const int place = threadIdx.x % 32, part = threadIdx.x / 32;
    const long long row = (long long)blockIdx.x * 32 + place;
    float largest = 0.0f;
    if (row < @ROWS@)
        for (int step = part; step < @STEPS@; step += 8)
            largest = math::maximum(largest, peaks_@WHICH@[step * (long long)@ROWS@ + row]);
    found[part][place] = largest;
    __syncthreads();
    if (row >= @ROWS@) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = math::maximum(largest, found[i][place]);
    const int exponent = pack::suits<@GUESS@>(largest) ? @GUESS@ : pack::exponent_for(largest);
    if (part == 0) exponents_@WHICH@[row] = -exponent;
    if (exponent == @GUESS@) return;
    for (int step = part; step < @STEPS@; step += 8) @KERNEL@_row_@WHICH@(@ARGUMENTS@, row, step, pack::power(exponent));
}
