// acc[m, n] = sum over k of a[m, k] * b[k, n] on the tensor cores of warpgroups, from operands in tiles of
// @BM@ (@BN@) rows and 128 bytes of k, swizzled as wgmma reads them: @NAME@_pack_* brought them into that
// order, or the copy engine does on the way. One thread copies tiles into a ring of shared memory, the warpgroups
// multiply; each adds up @GM@ x @GN@.@ABOUT@
extern "C" __global__ void __launch_bounds__(@THREADS@, @RESIDENT@) @NAME@(@PARAMETERS@) {
    constexpr int BM = @BM@, BN = @BN@, GM = @GM@, GN = @GN@, STAGES = @STAGES@, STEPS = @STEPS@;
    constexpr int ITEMS = @ITEMS@;  // tiles of the result, of all batches and parts of k
    constexpr bool STAYS = @STAYS@;  // a block computes one tile after the other
    constexpr int WIDE = GN % 128 ? 64 : 128;  // columns of one instruction
    // Of elements in two parts low times high, high times low and high times high; sums then leave the tensor cores, which
    // cut off what they add, after every step.
    constexpr int PRODUCTS = @PRODUCTS@, PARTS = PRODUCTS == 3 ? 2 : 1;
    constexpr int WARPS = (BM / GM) * (BN / GN) * 4;  // that multiply
    using Precision = wgmma::@PRECISION@;
    using TileA = wgmma::Operand<Precision, BM>;
    using TileB = wgmma::Operand<Precision, BN>;
    constexpr int STAGE = PARTS * (TileA::BYTES + TileB::BYTES);
    extern __shared__ __align__(1024) unsigned char tiles[];
    bulk::Barrier* const full = reinterpret_cast<bulk::Barrier*>(tiles + STAGES * STAGE);
    bulk::Barrier* const empty = full + STAGES;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) bulk::prepare(full + stage, 1), bulk::prepare(empty + stage, WARPS);
        bulk::publish();
    }
    __syncthreads();
    if (warp >= WARPS) {
@GIVE_UP@
        if (threadIdx.x == WARPS * 32) {
            int round = 0;
            for (int item = blockIdx.x; item < ITEMS; item += @NEXT@) {
@PLACE@
                for (int step = first_step; step < end_step; ++step, ++round) {
                    const int stage = round % STAGES;
                    unsigned char* const to = tiles + stage * STAGE;
                    bulk::await(empty + stage, round / STAGES + 1 & 1);
                    bulk::expect(full + stage, STAGE);
@COPY_A@
@COPY_B@
                }
            }
        }
        return;
    }
@CLAIM@
    const int group_m = warp / 4 / (BN / GN) * GM, warp_n = warp / 4 % (BN / GN) * GN;
    const int warp_m = group_m + warp % 4 * 16;
@SLAB@
    int round = 0;
    for (int item = blockIdx.x; item < ITEMS; item += @NEXT@) {
@PLACE@
        float acc[GM / 64][GN / 8 * 4] = {};
        float drained[PARTS == 2 ? GM / 64 : 1][PARTS == 2 ? GN / 2 : 1] = {};
        for (int step = first_step; step < end_step; ++step, ++round) {
            const int stage = round % STAGES;
            const unsigned char* const here = tiles + stage * STAGE;
            bulk::await(full + stage, round / STAGES & 1);
            wgmma::begin();
#pragma unroll
            for (int product = 0; product < PRODUCTS; ++product) {
                const unsigned char* const from_a = here + (product == 0 ? PARTS - 1 : 0) * TileA::BYTES;
                const unsigned char* const from_b = here + PARTS * TileA::BYTES + (product == 1 ? 1 : 0) * TileB::BYTES;
#pragma unroll
                for (int k = 0; k < 128 / Precision::BYTES; k += Precision::DEPTH)
#pragma unroll
                    for (int i = 0; i < GM / 64; ++i)
#pragma unroll
                        for (int n = 0; n < GN; n += WIDE)
                            @MULTIPLY@(wgmma::part<WIDE / 2>(acc[i] + n / 2), @DESCRIBED_A@, @DESCRIBED_B@);
            }
            wgmma::commit();
            if constexpr (PARTS == 2) {
                wgmma::wait<0>();
#pragma unroll
                for (int i = 0; i < GM / 64; ++i) {
                    wgmma::hold(acc[i]);
#pragma unroll
                    for (int j = 0; j < GN / 2; ++j) drained[i][j] += acc[i][j], acc[i][j] = 0.0f;
                }
            }
            wgmma::wait<1>();  // the step before this one has been read
            if (lane == 0 && step > first_step) bulk::arrive(empty + (round - 1) % STAGES);
        }
        wgmma::wait<0>();
        if (STAYS && lane == 0 && first_step < end_step) bulk::arrive(empty + (round - 1) % STAGES);
#pragma unroll
        for (int i = 0; i < GM / 64; ++i) {
            wgmma::hold(acc[i]);
            if constexpr (PARTS == 2)
#pragma unroll
                for (int j = 0; j < GN / 2; ++j) acc[i][j] = drained[i][j];
        }
#pragma unroll
        for (int i = 0; i < GM / 64; ++i)
#pragma unroll
            for (int h = 0; h < GN / 8; ++h) mma::side_by_side(mma::four(acc[i] + h * 4), lane);
@SCALE@
#pragma unroll
        for (int i = 0; i < GM / 64; ++i) {
            const @INDEX@ m = first_m + warp_m + i * 64 + lane / 4 + lane % 2 * 8;
@ROW_SCALE@
#pragma unroll
            for (int h = 0; h < GN / 8; ++h) {
                const @INDEX@ n = first_n + warp_n + h * 8 + lane % 4 / 2 * 4;
@BEFORE_FOUR@
@EPILOGUE@
@AFTER_FOUR@
            }
@AFTER_ROW@
        }
    }
@LAST@
}
