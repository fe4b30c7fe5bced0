// Running @OP@ along each row of @LENGTH@: a block walks its row in tiles; threads scan @ITEMS@ neighbours each, warps and
// then the block combine their totals, and the tile's total is carried to the next one.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    constexpr int THREADS = @THREADS@, ITEMS = @ITEMS@, WARPS = THREADS / 32;
    const auto combine = [](T x, T y) { return @COMBINE@; };
    __shared__ T totals[WARPS];
    const int row = (int)blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
@ROW@
    T carry = @IDENTITY@;
    for (@INDEX@ tile = 0; tile < @LENGTH@; tile += THREADS * ITEMS) {
        const @INDEX@ first = tile + threadIdx.x * ITEMS;
        T x[ITEMS];
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) x[j] = @IDENTITY@;
        if (first < @LENGTH@) {
@LOAD@
        }
#pragma unroll
        for (int j = 1; j < ITEMS; ++j) x[j] = combine(x[j - 1], x[j]);
        T mine = x[ITEMS - 1];
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const T other = __shfl_up_sync(0xffffffffu, mine, distance);
            if (lane >= distance) mine = combine(other, mine);
        }
        if (lane == 31) totals[warp] = mine;
        __syncthreads();
        T before = carry;
        for (int w = 0; w < warp; ++w) before = combine(before, totals[w]);
        for (int w = 0; w < WARPS; ++w) carry = combine(carry, totals[w]);
        const T left = __shfl_up_sync(0xffffffffu, mine, 1);
        if (lane > 0) before = combine(before, left);
        __syncthreads();
        if (first < @LENGTH@) {
@STORE@
        }
    }
}
