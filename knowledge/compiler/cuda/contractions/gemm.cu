// acc[m, n] = sum over k of a[m, k] * b[k, n]: shared-memory tiles of @BM@ x @BN@, @BK@ deep, and @TM@ x @TN@ outputs in the
// registers of each thread. The next tiles travel through registers while the present ones are multiplied.
extern "C" __global__ void __launch_bounds__(@THREADS@, @MIN_BLOCKS@) @NAME@(@PARAMETERS@) {
    constexpr int BM = @BM@, BN = @BN@, BK = @BK@, TM = @TM@, TN = @TN@, THREADS = @THREADS@, STAGES = @STAGES@;
    constexpr int PITCH_A = BM + 4, PITCH_B = BN + 4;  // padded against bank conflicts of transposed stores
    constexpr int STAGE = BK * (PITCH_A + PITCH_B);
    extern __shared__ __align__(16) unsigned char staged[];
    @TYPE@* const tiles = reinterpret_cast<@TYPE@*>(staged);

    // Neighbouring blocks share tiles of both operands: columns of @GROUP@ tiles are walked together, so L2 serves them.
    const int tile = @TILE@;
    const int group = tile / (@GROUP@ * @TILES_N@), rest = tile % (@GROUP@ * @TILES_N@);
    const int height = @TILES_M@ - group * @GROUP@ < @GROUP@ ? @TILES_M@ - group * @GROUP@ : @GROUP@;
    const @INDEX@ first_m = (@INDEX@)(group * @GROUP@ + rest % height) * BM, first_n = (@INDEX@)(rest / height) * BN;
@BATCH@
    // A warp covers 4 x 8 threads, which needs the fewest distinct words of both tiles.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int ty = warp / (BN / TN / 8) * 4 + lane / 8, tx = warp % (BN / TN / 8) * 8 + lane % 8;

    @TYPE@ acc[TM][TN] = {};
    Vec<@TYPE@, @VECTOR_A@> held_a[@LOADS_A@];
    Vec<@TYPE@, @VECTOR_B@> held_b[@LOADS_B@];

    const auto fetch = [&](int first_k) {
@FETCH_A@
@FETCH_B@
    };
    const auto keep = [&](int stage) {
        @TYPE@* const to_a = tiles + stage * STAGE;
        @TYPE@* const to_b = to_a + BK * PITCH_A;
@KEEP_A@
@KEEP_B@
    };
    const auto multiply = [&](int stage) {
        const @TYPE@* const from_a = tiles + stage * STAGE + ty * 4;
        const @TYPE@* const from_b = tiles + stage * STAGE + BK * PITCH_A + tx * 4;
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            Vec<@TYPE@, 4> a[TM / 4], b[TN / 4];
#pragma unroll
            for (int i = 0; i < TM / 4; ++i) a[i] = load_vec<4>(from_a + k * PITCH_A + i * (BM / TM * 4));
#pragma unroll
            for (int i = 0; i < TN / 4; ++i) b[i] = load_vec<4>(from_b + k * PITCH_B + i * (BN / TN * 4));
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[i][j] += a[i / 4].at[i % 4] * b[j / 4].at[j % 4];
        }
    };

    const int first_step = @FIRST_STEP@, end_step = @END_STEP@;
    if (first_step < end_step) {
        fetch(first_step * BK);
        keep(0);
        __syncthreads();
    }
    for (int step = first_step; step < end_step; ++step) {
        const bool more = step + 1 < end_step;
        const int stage = (step - first_step) % STAGES;
        if (more) fetch((step + 1) * BK);
        multiply(stage);
        if (more) {
            if (STAGES == 1) __syncthreads();
            keep((stage + 1) % STAGES);
            __syncthreads();
        }
    }
@AFTERWARDS@
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const @INDEX@ m = first_m + i / 4 * (BM / TM * 4) + ty * 4 + i % 4;
#pragma unroll
        for (int h = 0; h < TN / 4; ++h) {
            const @INDEX@ n = first_n + h * (BN / TN * 4) + tx * 4;
@EPILOGUE@
        }
@AFTER_ROW@
    }
}
