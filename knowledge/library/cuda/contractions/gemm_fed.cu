// acc[m, n] = sum over k of a[m, k] * b[k, n] on the tensor cores of warpgroups: shared-memory tiles of @BM@ x @BN@, @BK@
// deep, in a ring. Some warps feed it: elements travel through their registers, where they are rounded, and as soon as one
// has left them its successor is on its way. The other warpgroups multiply; each adds up @GM@ x @GN@.
extern "C" __global__ void __launch_bounds__(@THREADS@, 1) @NAME@(@PARAMETERS@) {
    constexpr int BM = @BM@, BN = @BN@, BK = @BK@, GM = @GM@, GN = @GN@, STAGES = @STAGES@;
    constexpr int WARPS = (BM / GM) * (BN / GN) * 4;  // that multiply
    constexpr int THREADS = @FEEDERS@;  // that feed
    constexpr int WIDE = GN % 128 ? 64 : 128;  // columns of one instruction
    constexpr int WN = GN;
    using Precision = wgmma::@PRECISION@;
    using TileA = wgmma::Operand<Precision, BM>;
    using TileB = wgmma::Operand<Precision, BN>;
    constexpr int STAGE = TileA::BYTES + TileB::BYTES;
    extern __shared__ __align__(1024) unsigned char tiles[];
    bulk::Barrier* const full = reinterpret_cast<bulk::Barrier*>(tiles + STAGES * STAGE);
    bulk::Barrier* const empty = full + STAGES;

    // Neighbouring blocks share tiles of both operands: columns of @GROUP@ tiles are walked together, so L2 serves them.
    const int tile = @TILE@;
    const int group = tile / (@GROUP@ * @TILES_N@), rest = tile % (@GROUP@ * @TILES_N@);
    const int height = @TILES_M@ - group * @GROUP@ < @GROUP@ ? @TILES_M@ - group * @GROUP@ : @GROUP@;
    const @INDEX@ first_m = (@INDEX@)(group * @GROUP@ + rest % height) * BM, first_n = (@INDEX@)(rest / height) * BN;
@BATCH@
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_step = @FIRST_STEP@, end_step = @END_STEP@;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage)
            bulk::prepare(full + stage, THREADS / 32), bulk::prepare(empty + stage, WARPS);
        bulk::publish();
    }
    __syncthreads();
    if (warp >= WARPS) {
        wgmma::give_up<@OWN@>();
        const int thread = (threadIdx.x - WARPS * 32) & (THREADS - 1);  // known to lie there: addresses are simpler
        Vec<float, @VECTOR_A@> held_a[@LOADS_A@];
        Vec<float, @VECTOR_B@> held_b[@LOADS_B@];
        int first_k = first_step * BK;
        if (first_step < end_step) {
@FETCH_A@
@FETCH_B@
        }
        for (int round = 0; round < end_step - first_step; ++round) {
            const int stage = round % STAGES;
            const bool more = first_step + round + 1 < end_step;
            unsigned char* const to_a = tiles + stage * STAGE;
            unsigned char* const to_b = to_a + TileA::BYTES;
            first_k += BK;
            bulk::await(empty + stage, round / STAGES + 1 & 1);
@ROLL_A@
@ROLL_B@
            wgmma::publish();
            __syncwarp();
            if (lane == 0) bulk::arrive(full + stage);
        }
        return;
    }
    wgmma::claim<@MOST@>();
    const int group_m = warp / 4 / (BN / GN) * GM, warp_n = warp / 4 % (BN / GN) * GN;
    const int warp_m = group_m + warp % 4 * 16;
    float acc[GM / 64][GN / 8 * 4] = {};
    for (int round = 0; round < end_step - first_step; ++round) {
        const int stage = round % STAGES;
        const unsigned char* const from_a = tiles + stage * STAGE;
        const unsigned char* const from_b = from_a + TileA::BYTES;
        bulk::await(full + stage, round / STAGES & 1);
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
        wgmma::wait<1>();  // the step before this one has been read
        if (lane == 0 && round > 0) bulk::arrive(empty + (round - 1) % STAGES);
    }
    wgmma::wait<0>();
#pragma unroll
    for (int i = 0; i < GM / 64; ++i) wgmma::hold(acc[i]);
#pragma unroll
    for (int i = 0; i < GM / 64; ++i)
#pragma unroll
        for (int h = 0; h < GN / 8; ++h) mma::side_by_side(mma::four(acc[i] + h * 4), lane);
#pragma unroll
    for (int i = 0; i < GM / 64; ++i) {
        constexpr int ROWS = 64;  // from one part of a warp to the next
        const @INDEX@ m = first_m + warp_m + i * ROWS + lane / 4 + lane % 2 * 8;
@EPILOGUE@
    }
}
