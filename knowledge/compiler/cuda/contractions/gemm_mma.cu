// acc[m, n] = sum over k of a[m, k] * b[k, n] on tensor cores: shared-memory tiles of @BM@ x @BN@, @BK@ deep; each warp
// adds up @WM@ x @WN@ of them. The next tiles travel through registers while the present ones are multiplied.
extern "C" __global__ void __launch_bounds__(@THREADS@, @MIN_BLOCKS@) @NAME@(@PARAMETERS@) {
    constexpr int BM = @BM@, BN = @BN@, BK = @BK@, WM = @WM@, WN = @WN@, THREADS = @THREADS@, STAGES = @STAGES@;
    using Precision = mma::@PRECISION@;
    using TileA = mma::Operand<Precision, BM, BK, @A_ALONG_K@>;
    using TileB = mma::Operand<Precision, BN, BK, @B_ALONG_K@>;
    constexpr int STAGE = TileA::WORDS + TileB::WORDS;
    extern __shared__ __align__(16) unsigned char staged[];
    unsigned* const tiles = reinterpret_cast<unsigned*>(staged);

    // Neighbouring blocks share tiles of both operands: columns of @GROUP@ tiles are walked together, so L2 serves them.
    const int tile = @TILE@;
    const int group = tile / (@GROUP@ * @TILES_N@), rest = tile % (@GROUP@ * @TILES_N@);
    const int height = @TILES_M@ - group * @GROUP@ < @GROUP@ ? @TILES_M@ - group * @GROUP@ : @GROUP@;
    const @INDEX@ first_m = (@INDEX@)(group * @GROUP@ + rest % height) * BM, first_n = (@INDEX@)(rest / height) * BN;
@BATCH@
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp / (BN / WN) * WM, warp_n = warp % (BN / WN) * WN;

    float acc[WM / 16][WN / 8 * 4] = {};
    Vec<float, @VECTOR_A@> held_a[@LOADS_A@];
    Vec<float, @VECTOR_B@> held_b[@LOADS_B@];

    const auto fetch = [&](int first_k) {
@FETCH_A@
@FETCH_B@
    };
    const auto keep = [&](int stage) {
        unsigned* const to_a = tiles + stage * STAGE;
        unsigned* const to_b = to_a + TileA::WORDS;
@KEEP_A@
@KEEP_B@
    };
    const auto multiply = [&](int stage) {
        const unsigned* const from_a = tiles + stage * STAGE;
        const unsigned* const from_b = from_a + TileA::WORDS;
        float part[WM / 16][WN / 8][4] = {};  // only where sums leave the tensor cores after every tile
#pragma unroll
        for (int k = 0; k < BK; k += Precision::DEPTH) {
            typename Precision::A a[WM / 16];
            typename Precision::B b[WN / 8];
#pragma unroll
            for (int i = 0; i < WM / 16; ++i) a[i] = TileA::fragment_a(from_a, warp_m + i * 16, k, lane);
#pragma unroll
            for (int h = 0; h < WN / 8; ++h) b[h] = TileB::fragment_b(from_b, warp_n + h * 8, k, lane);
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int h = 0; h < WN / 8; ++h)
                    Precision::multiply(Precision::DRAINED ? part[i][h] : mma::four(acc[i] + h * 4), a[i], b[h]);
        }
        if (!Precision::DRAINED) return;
#pragma unroll
        for (int i = 0; i < WM / 16; ++i)
#pragma unroll
            for (int h = 0; h < WN / 8 * 4; ++h) acc[i][h] += part[i][h / 4][h % 4];
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
#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int h = 0; h < WN / 8; ++h) mma::side_by_side(mma::four(acc[i] + h * 4), lane);
@AFTERWARDS@
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
        constexpr int ROWS = 16;  // from one part of a warp to the next
        const @INDEX@ m = first_m + warp_m + i * ROWS + lane / 4 + lane % 2 * 8;
@EPILOGUE@
    }
}
