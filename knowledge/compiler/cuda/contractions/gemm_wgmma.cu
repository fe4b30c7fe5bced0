// acc[m, n] = sum over k of a[m, k] * b[k, n] on the tensor cores of a warpgroup: shared-memory tiles of @BM@ x @BN@, @BK@
// deep; each warpgroup adds up @GM@ x @GN@ of them. While one step is multiplied, the next one travels through registers,
// where it is rounded, into another stage of shared memory.
extern "C" __global__ void __launch_bounds__(@THREADS@, @MIN_BLOCKS@) @NAME@(@PARAMETERS@) {
    constexpr int BM = @BM@, BN = @BN@, BK = @BK@, GM = @GM@, GN = @GN@, THREADS = @THREADS@, STAGES = @STAGES@;
    constexpr int WIDE = GN % 128 ? 64 : 128;  // columns of one instruction
    constexpr int WN = GN;
    using Precision = wgmma::@PRECISION@;
    using TileA = wgmma::Operand<Precision, BM>;
    using TileB = wgmma::Operand<Precision, BN>;
    constexpr int STAGE = TileA::BYTES + TileB::BYTES;
    extern __shared__ __align__(1024) unsigned char tiles[];

    // Neighbouring blocks share tiles of both operands: columns of @GROUP@ tiles are walked together, so L2 serves them.
    const int tile = @TILE@;
    const int group = tile / (@GROUP@ * @TILES_N@), rest = tile % (@GROUP@ * @TILES_N@);
    const int height = @TILES_M@ - group * @GROUP@ < @GROUP@ ? @TILES_M@ - group * @GROUP@ : @GROUP@;
    const @INDEX@ first_m = (@INDEX@)(group * @GROUP@ + rest % height) * BM, first_n = (@INDEX@)(rest / height) * BN;
@BATCH@
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group_m = warp / 4 / (BN / GN) * GM, warp_n = warp / 4 % (BN / GN) * GN;
    const int warp_m = group_m + warp % 4 * 16;

    float acc[GM / 64][GN / 8 * 4] = {};
    Vec<float, @VECTOR_A@> held_a[@LOADS_A@];
    Vec<float, @VECTOR_B@> held_b[@LOADS_B@];

    const auto fetch = [&](int first_k) {
@FETCH_A@
@FETCH_B@
    };
    const auto keep = [&](int stage) {
        unsigned char* const to_a = tiles + stage * STAGE;
        unsigned char* const to_b = to_a + TileA::BYTES;
@KEEP_A@
@KEEP_B@
    };
    const auto multiply = [&](int stage) {
        const unsigned char* const from_a = tiles + stage * STAGE;
        const unsigned char* const from_b = from_a + TileA::BYTES;
        wgmma::begin();
#pragma unroll
        for (int k = 0; k < BK; k += Precision::DEPTH)
#pragma unroll
            for (int i = 0; i < GM / 64; ++i)
#pragma unroll
                for (int n = 0; n < GN; n += WIDE)
                    Precision::multiply(wgmma::part<WIDE / 2>(acc[i] + n / 2),
                                        TileA::described(from_a, group_m + i * 64, k),
                                        TileB::described(from_b, warp_n + n, k));
        wgmma::commit();
    };

    const int first_step = @FIRST_STEP@, end_step = @END_STEP@;
    if (first_step < end_step) {
        fetch(first_step * BK);
        keep(0);
        wgmma::publish();
        __syncthreads();
    }
    int stage = 0;
    for (int step = first_step; step < end_step; ++step) {
        const bool more = step + 1 < end_step;
        const int next = stage + 1 == STAGES ? 0 : stage + 1;
        if (more) fetch((step + 1) * BK);
        multiply(stage);
        if (more) {
            keep(next);
            wgmma::publish();
        }
        wgmma::wait<STAGES - 2>();  // with two stages the next step overwrites what this one reads, with three it does not
        __syncthreads();
        stage = next;
    }
    wgmma::wait<0>();
#pragma unroll
    for (int i = 0; i < GM / 64; ++i) wgmma::hold(acc[i]);
#pragma unroll
    for (int i = 0; i < GM / 64; ++i)
#pragma unroll
        for (int h = 0; h < GN / 8; ++h) mma::side_by_side(mma::four(acc[i] + h * 4), lane);
@AFTERWARDS@
#pragma unroll
    for (int i = 0; i < GM / 64; ++i) {
        constexpr int ROWS = 64;  // from one part of a warp to the next
        const @INDEX@ m = first_m + warp_m + i * ROWS + lane / 4 + lane % 2 * 8;
@EPILOGUE@
    }
}
