// Running @OP@ along rows of @LENGTH@: a team of lanes, or a block, walks its row in tiles. A tile is read while the one
// before it is worked on, and its total is carried on.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    constexpr int LANES = @LANES@, WARPS = @WARPS@, ROUNDS = @ROUNDS@, V = @VECTOR@;
    const auto combine = [](T x, T y) { return @COMBINE@; };
    __shared__ T totals[2][WARPS];
    const int warp = WARPS > 1 ? threadIdx.x / 32 : 0;
    const int place = blockIdx.x * @ROWS_PER_BLOCK@ + threadIdx.x / (LANES * WARPS);
    const bool active = place < @ROWS@;
    const int row = active ? place : @ROWS@ - 1;
@ROW@
    const @INDEX@ start = (warp * ROUNDS * LANES + threadIdx.x % LANES) * V;
    T carry = @IDENTITY@;
    int turn = 0;
@DECLARE@
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        const @INDEX@ first = start + k * LANES * V;
@LOAD@
    }
    for (@INDEX@ tile = 0; tile < @LENGTH@; tile += LANES * WARPS * ROUNDS * V) {
        T x[ROUNDS][V], earlier[ROUNDS];
#pragma unroll
        for (int k = 0; k < ROUNDS; ++k) {
            const @INDEX@ first = tile + start + k * LANES * V;
#pragma unroll
            for (int j = 0; j < V; ++j) x[k][j] = @IDENTITY@;
@VALUE@
        }
#pragma unroll
        for (int k = 0; k < ROUNDS; ++k) {
            const @INDEX@ first = tile + LANES * WARPS * ROUNDS * V + start + k * LANES * V;
@LOAD@
        }
        const T total = scan::over_team<LANES>(x, earlier, combine, @IDENTITY@);
        T before = carry;
        if constexpr (WARPS > 1) {
            if (threadIdx.x % 32 == 31) totals[turn][warp] = total;
            __syncthreads();
            for (int w = 0; w < WARPS; ++w) {
                if (w < warp) before = combine(before, totals[turn][w]);
                carry = combine(carry, totals[turn][w]);
            }
            turn ^= 1;
        } else {
            carry = combine(carry, total);
        }
        if (active) {
#pragma unroll
            for (int k = 0; k < ROUNDS; ++k) {
                const @INDEX@ first = tile + start + k * LANES * V;
@STORE@
            }
        }
    }
}
