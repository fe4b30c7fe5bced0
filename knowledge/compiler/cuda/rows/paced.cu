// Every row twice in one launch. Blocks draw numbers: the first ones reduce parts of the first @LAG@ rows, then one that
// reduces a part of a row and one that finishes a part of the row @LAG@ before it take turns. Who finishes a part waits for
// those who reduce its row, and they have lower numbers.
extern "C" __global__ void @NAME@_clear(unsigned* __restrict__ paced) {
    const int word = blockIdx.x * 256 + threadIdx.x;
    if (word < @WORDS@) paced[word] = 0;
}
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    __shared__ unsigned drawn;
    if (threadIdx.x == 0) drawn = atomicAdd(paced, 1u);
    __syncthreads();
    const int number = (int)drawn, early = @LAG@ * @SPLITS@;
    const bool reduces = number < early || (number - early) % 2 == 0;
    const int part = number < early ? number : (number - early) / 2 + (reduces ? early : 0);
    const int split = part % @SPLITS@, paced_row = part / @SPLITS@;
    if (paced_row >= @ROWS@) return;
@POSITION@
    if (reduces) {
@FIRST@
    } else {
        if (threadIdx.x == 0) {
            while (*(volatile unsigned*)(paced + 1 + row) < @SPLITS@u) __nanosleep(40);
            __threadfence();
        }
        __syncthreads();
@SECOND@
    }
}
