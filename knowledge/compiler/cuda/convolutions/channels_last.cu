// acc[pixel, channel] = sum over (tap, input channel) of x * weight on the tensor cores of warpgroups, in tiles of @BM@ pixels
// times @BN@ channels. A block computes one tile after the other: four warps copy rows of 128 bytes of (tap, channel), 16
// bytes at a time, from the input that @NAME@_pack brought into order, and tiles of weights from @NAME@_weights; each of
// @TURNS@ warpgroups multiplies every @TURNS@. tile, and stores it while the others multiply.
extern "C" __global__ void __launch_bounds__(@THREADS@, @MIN_BLOCKS@) @NAME@(@PARAMETERS@) {
    constexpr int BM = @BM@, BN = @BN@, STAGES = @STAGES@, TURNS = @TURNS@, TILES = @TILES@;
    constexpr int PHASES = @PHASES@;  // that a tile computes together: of the last axis, stored side by side, or all
    constexpr int WIDE = BN % 128 ? BN : 128;  // columns of one instruction
    constexpr int DRAINED = @DRAINED@;  // steps after which sums leave the tensor cores, which cut off what they add; 0: none
    constexpr int LATE = STAGES - 2;  // steps that are on their way while the one before them is told to be there
    using Precision = wgmma::@PRECISION@;
    using TileA = wgmma::Operand<Precision, BM>;
    using TileB = wgmma::Operand<Precision, BN>;
    constexpr bool KEEPS = @KEEPS@;  // all weights in shared memory
    constexpr int STAGE = TileA::BYTES + (KEEPS ? 0 : TileB::BYTES);
    const int all_steps = @ALL_STEPS@;
    extern __shared__ __align__(1024) unsigned char tiles[];
    unsigned char* const kept = tiles + STAGES * STAGE;
    bulk::Barrier* const full = reinterpret_cast<bulk::Barrier*>(kept + (KEEPS ? all_steps : 0) * TileB::BYTES);
    bulk::Barrier* const empty = full + STAGES;
    // Whose turn it is: a warpgroup that did not see a stage's last round would take it for the one it waits for.
    bulk::Barrier* const turns = empty + STAGES;
    bulk::Barrier* const there = turns + TURNS;  // all weights are
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;  // warp: the same in all lanes

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) bulk::prepare(full + stage, KEEPS ? 4 : 5), bulk::prepare(empty + stage, 4);
        for (int group = 0; group < TURNS; ++group) bulk::prepare(turns + group, 4);
        bulk::prepare(there, 1);
        bulk::publish();
    }
    __syncthreads();
    if (warp >= TURNS * 4) {
@GIVE_UP@
        const int thread = threadIdx.x - TURNS * 128, piece = thread % 8;
        int round = 0;
        if (KEEPS && thread == 0) {
            bulk::expect(there, all_steps * TileB::BYTES);
            for (int i = 0; i < all_steps; ++i)
                bulk::copy(kept + i * TileB::BYTES, weights + i * TileB::BYTES, TileB::BYTES, there);
        }
        const auto tell = [&](int done) {  // that the copies of a round are there
            wgmma::publish();
            __syncwarp();
            if (lane == 0) bulk::arrive(full + done % STAGES);
        };
        for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
@BLOCK@
            int begin[BM / 16];  // piece of the packed input where a row's window begins
#pragma unroll
            for (int i = 0; i < BM / 16; ++i) {
                const int pixel = first_m + @GATHERED@;
                const int m = @IS_PIXEL@ ? pixel : 0;
@PIXEL@
                begin[i] = @BEGIN@;
            }
            const long long first_tile = ((long long)@GROUP@ * all_steps + first_step) * @TILES_N@ + tile_n;
            for (int step = 0; step < steps; ++step, ++round) {
                const int stage = round % STAGES;
                unsigned char* const to = tiles + stage * STAGE;
                const int at = @NAME@_reads[(first_step + step) * 8 + piece];  // negative behind the last tap
                bulk::await(empty + stage, round / STAGES + 1 & 1);
                if (!KEEPS && thread == 0) {
                    bulk::expect(full + stage, TileB::BYTES);
                    bulk::copy(to + TileA::BYTES, weights + (first_tile + (long long)step * @TILES_N@) * TileB::BYTES,
                               TileB::BYTES, full + stage);
                }
#pragma unroll
                for (int i = 0; i < BM / 16; ++i) {
                    const int row = thread / 8 + i * 16;
                    const long long from = at < 0 ? 0 : (long long)(begin[i] + at) * 16;
                    async::copy<16, @NEAR@>(to + row * 128 + (piece ^ row % 8) * 16, packed + from, at >= 0);
                }
                async::commit();
                async::wait<LATE>();
                if (round >= LATE) tell(round - LATE);
            }
        }
        async::wait<0>();
        for (int done = round < LATE ? 0 : round - LATE; done < round; ++done) tell(done);
        return;
    }
@CLAIM@
    const int group = warp / 4;
    if (KEEPS) bulk::await(there, 0);
    int round = 0, others = group, own = 0;  // tiles of others before the next own one, own ones so far
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
@BLOCK@
        if (others != 0) {
            --others, round += steps;
            continue;
        }
        others = TURNS - 1;
        if (TURNS > 1) bulk::await(turns + group, group == 0 ? own + 1 & 1 : own & 1);
        ++own;
        float acc[PHASES][BM / 64][BN / 2] = {};
        int past = 0;  // steps of phases before
#pragma unroll
        for (int w = 0; w < PHASES; ++w) {
            float drained[DRAINED ? BM / 64 : 1][DRAINED ? BN / 2 : 1] = {};
            const int count = @COUNT@;
            for (int step = 0; step < count; ++step, ++round) {
                const int stage = round % STAGES;
                const unsigned char* const from_a = tiles + stage * STAGE;
                const unsigned char* const from_b =
                    KEEPS ? kept + (first_step + past + step) * TileB::BYTES : from_a + TileA::BYTES;
                bulk::await(full + stage, round / STAGES & 1);
                wgmma::begin();
#pragma unroll
                for (int k = 0; k < 128 / Precision::BYTES; k += Precision::DEPTH)
#pragma unroll
                    for (int i = 0; i < BM / 64; ++i)
#pragma unroll
                        for (int n = 0; n < BN; n += WIDE)
                            Precision::multiply(wgmma::part<WIDE / 2>(acc[w][i] + n / 2),
                                                TileA::described(from_a, i * 64, k), TileB::described(from_b, n, k));
                wgmma::commit();
                if constexpr (DRAINED) {
                    if (step % (DRAINED ? DRAINED : 1) == DRAINED - 1) {
                        wgmma::wait<0>();
#pragma unroll
                        for (int i = 0; i < BM / 64; ++i) {
                            wgmma::hold(acc[w][i]);
#pragma unroll
                            for (int j = 0; j < BN / 2; ++j) drained[i][j] += acc[w][i][j], acc[w][i][j] = 0.0f;
                        }
                    }
                }
                wgmma::wait<1>();  // the step before this one has been read
                if (lane == 0 && step > 0) bulk::arrive(empty + (round - 1) % STAGES);
            }
            if (TURNS > 1 && w == PHASES - 1 && lane == 0) bulk::arrive(turns + (group + 1) % TURNS);
            wgmma::wait<0>();
            if (lane == 0 && count > 0) bulk::arrive(empty + (round - 1) % STAGES);
            past += count;
#pragma unroll
            for (int i = 0; i < BM / 64; ++i) {
                wgmma::hold(acc[w][i]);
                if constexpr (DRAINED)
#pragma unroll
                    for (int j = 0; j < BN / 2; ++j) acc[w][i][j] += drained[i][j];
            }
        }
        struct Pixel { @IMAGE@ image; int p0, p1, p2; pack::Scale scale; bool exists; };
        Pixel place[@PARTS@][@HALVES@];
#pragma unroll
        for (int i = 0; i < @PARTS@; ++i)
#pragma unroll
            for (int r = 0; r < @HALVES@; ++r) {
                const int m = first_m + @ROW@;
@OUTPUT@
                place[i][r] = {photo, p0, p1, p2, @SCALE@, @EXISTS@};
            }
@TAIL_BEGIN@
#pragma unroll
        for (int h = 0; h < BN / 8; ++h)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int n = first_n + h * 8 + lane % 4 * 2 + side;
                const int channel = @GROUP@ * @N@ + n;
@CHANNEL_SCALE@
@TAIL_CHANNEL@
                if (@CHANNEL_EXISTS@) {
#pragma unroll
                    for (int i = 0; i < @PARTS@; ++i)
#pragma unroll
                        for (int r = 0; r < @HALVES@; ++r)
                            if (@PIXEL_EXISTS@) {
                                const @IMAGE@ image = place[i][r].image;
                                const int p0 = place[i][r].p0, p1 = place[i][r].p1, p2 = place[i][r].p2;
@EPILOGUE@
                            }
                }
@TAIL_KEEP@
            }
@TAIL_END@
    }
}
