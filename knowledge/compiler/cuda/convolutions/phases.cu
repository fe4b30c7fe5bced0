// Phases of the stride: first output along each axis, number of taps, first of them in the list of all.
@MEMORY@ int @NAME@_phases[@PHASES@][5] = {
    @PHASE_ROWS@};
// Position in the kernel of each tap of that list.
@MEMORY@ int @NAME@_order[@TAPS@] = {@ORDER@};

// The weights in the order in which the phases read them: (group, tap, input channel, output channel).
extern "C" __global__ void __launch_bounds__(256) @NAME@_pack(
    const @W_TYPE@* __restrict__ weight, @TYPE@* __restrict__ packed) {
    const @WIDE@ point = (@WIDE@)blockIdx.x * 256 + threadIdx.x;
    if (point >= @POINTS@) return;
    const int m = (int)(point % @M@), c = (int)(point / @M@ % @CHANNELS@), tap = (int)(point / @CHANNELS_M@ % @TAPS@);
    const @WIDE@ group = point / @ALL@;
    const @W_TYPE@ found = weight[((group * @CHANNELS@ + c) * @M@ + m) * @TAPS@ + @NAME@_order[tap]];
    packed[point] = @FOUND@;
}

