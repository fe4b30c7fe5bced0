// @OP@ of @ITEMS@ items in @SEGMENTS@ segments: a team of @LANES@ lanes times @ROWS@ rows of threads a segment, of which each
// row reads every @ROWS@th item; what the rows have is combined in the same order in every call.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    constexpr int V = @VECTOR@, LANES = @LANES@, ROWS = @ROWS@, TEAMS = @THREADS@ / (LANES * ROWS);
    const auto combine = [](T x, T y) { return @COMBINE@; };
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES % ROWS;
    const long long task = (long long)blockIdx.x * TEAMS + threadIdx.x / (LANES * ROWS);
    const @INDEX@ segment = (@INDEX@)(task / @TURNS@), column = (@INDEX@)(task % @TURNS@) * LANES + lane;
    const bool present = segment < @SEGMENTS@ && column < @COLUMNS@;
    @STATE@ mine[V];
    int count = 0;
@COLUMN@
    if (present) {
        const int begin = starts[segment];
        count = starts[segment + 1] - begin;
@SHARE@
        int at = first + row;
        for (; at + 3 * ROWS < last; at += 4 * ROWS) {
            T x[V][4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const @INDEX@ item = @ITEM_OF_ROUND@;
@VALUE@
            }
#pragma unroll
            for (int j = 0; j < V; ++j) mine[j].chunk(x[j]);
        }
        for (; at < last; at += ROWS) {
            T x[V][1];
            constexpr int k = 0;
            const @INDEX@ item = @ITEM@;
@VALUE@
#pragma unroll
            for (int j = 0; j < V; ++j) mine[j].add(x[j][0]);
        }
    }
    T found[V];
#pragma unroll
    for (int j = 0; j < V; ++j) found[j] = mine[j].result();
    if constexpr (ROWS > 1) {
        __shared__ T held[V][@THREADS@];
        for (int other = ROWS / 2; other > 0; other /= 2) {
            for (int j = 0; j < V; ++j) held[j][threadIdx.x] = found[j];
            __syncthreads();
            if (row < other)
                for (int j = 0; j < V; ++j) found[j] = combine(found[j], held[j][threadIdx.x + other * LANES]);
            __syncthreads();
        }
    }
    if (!present || row > 0) return;
@STORE@
}
