// Running @OP@ along rows of @LENGTH@, a tile a block: a tile tells its total to those behind it, and looks back for what
// comes before it: up to 31 totals of its own group of tiles, up to 31 totals of whole groups, and what comes before
// these. They are combined in the same order whoever comes first, and nobody waits for a tile of a higher number.
extern "C" __global__ void @NAME@_clear(unsigned long long* __restrict__ memory) {
    const int word = blockIdx.x * 256 + threadIdx.x;
    if (word < @WORDS@) memory[word] = 0;
}
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    constexpr int WARPS = @THREADS@ / 32, ROUNDS = @ROUNDS@, V = @VECTOR@, TILES = @TILES@;
    constexpr int GROUPS = (TILES + 31) / 32, SPANS = (GROUPS + 31) / 32;
    const auto combine = [](T x, T y) { return @COMBINE@; };
    __shared__ T totals[WARPS], outside[3];
    __shared__ unsigned number;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) number = atomicAdd((unsigned*)memory, 1u);
    __syncthreads();
    const int row = (int)(number / TILES), tile = (int)(number % TILES);
    const int group = tile / 32, span = group / 32;
    scan::Slot<T>* const of_tiles = (scan::Slot<T>*)(memory + 2) + (long long)row * (TILES + GROUPS + SPANS);
    scan::Slot<T>* const of_groups = of_tiles + TILES;
    scan::Slot<T>* const of_spans = of_groups + GROUPS;
@ROW@
    const @INDEX@ start = (@INDEX@)tile * (@THREADS@ * ROUNDS * V) + (warp * ROUNDS * 32 + lane) * V;
    T x[ROUNDS][V], earlier[ROUNDS];
@DECLARE@
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        const @INDEX@ first = start + k * 32 * V;
@LOAD@
    }
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        const @INDEX@ first = start + k * 32 * V;
#pragma unroll
        for (int j = 0; j < V; ++j) x[k][j] = @IDENTITY@;
@VALUE@
    }
    const T total = scan::over_team<32>(x, earlier, combine, @IDENTITY@);
    if (lane == 31) totals[warp] = total;
    __syncthreads();
    T before = @IDENTITY@, whole = @IDENTITY@;
    for (int w = 0; w < WARPS; ++w) {
        if (w < warp) before = combine(before, totals[w]);
        whole = combine(whole, totals[w]);
    }
    if (warp == 0) {
        if (lane == 0) of_tiles[tile].tell(whole);
        T seen = lane < tile % 32 ? of_tiles[group * 32 + lane].wait() : @IDENTITY@;
        seen = scan::over_lanes<32>(seen, combine);
        if (lane == 31) {
            outside[0] = seen;
            if (tile % 32 == 31) of_groups[group].tell(combine(seen, whole));
        }
    } else if (warp == 1) {
        const T seen = lane < group % 32 ? of_groups[span * 32 + lane].wait() : @IDENTITY@;
        const T all = scan::over_lanes<32>(seen, combine);
        if (lane == 31) outside[1] = all;
    } else if (warp == 2 && lane == 0) {
        outside[2] = span > 0 ? of_spans[span].wait() : @IDENTITY@;
    }
    __syncthreads();
    const T far = combine(combine(outside[2], outside[1]), outside[0]);
    if (threadIdx.x == 0 && tile % 1024 == 1023 && span + 1 < SPANS) of_spans[span + 1].tell(combine(far, whole));
    before = combine(far, before);
#pragma unroll
    for (int k = 0; k < ROUNDS; ++k) {
        const @INDEX@ first = start + k * 32 * V;
@STORE@
    }
}
