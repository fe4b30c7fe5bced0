// acc[pixel, channel] = sum over (tap, input channel) of x * weight on the tensor cores of warpgroups: @BM@ pixels times
// @BN@ channels a block, each warpgroup adds up @GM@ x @GN@. Rows of 128 bytes of (tap, channel) are read from the input
// that @NAME@_pack brought into order, each thread 16 bytes at a time; tiles of weights come whole from @NAME@_weights.
extern "C" __global__ void __launch_bounds__(@THREADS@, @MIN_BLOCKS@) @NAME@(@PARAMETERS@) {
    constexpr int BM = @BM@, BN = @BN@, GM = @GM@, GN = @GN@, STAGES = @STAGES@, THREADS = @THREADS@;
    constexpr int WIDE = GN % 128 ? GN : 128;  // columns of one instruction
    constexpr int DRAINED = @DRAINED@;  // steps after which sums leave the tensor cores, which cut off what they add; 0: none
    constexpr int ROWS = BM * 8 / THREADS;  // that a thread copies a piece of
    using Precision = wgmma::@PRECISION@;
    using TileA = wgmma::Operand<Precision, BM>;
    using TileB = wgmma::Operand<Precision, BN>;
    constexpr int STAGE = TileA::BYTES + TileB::BYTES;
    extern __shared__ __align__(1024) unsigned char tiles[];
    bulk::Barrier* const full = reinterpret_cast<bulk::Barrier*>(tiles + STAGES * STAGE);  // a tile of weights is there

@BLOCK@
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int piece = threadIdx.x % 8;
    int begin[ROWS];  // piece of the packed input where a row's window begins
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int pixel = first_m + (int)threadIdx.x / 8 + i * (THREADS / 8);
        const int m = pixel < @M@ ? pixel : 0;
@PIXEL@
        begin[i] = @BEGIN@;
    }
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) bulk::prepare(full + stage, 1);
        bulk::publish();
    }
    const auto fetch = [&](int step) {
        unsigned char* const to = tiles + step % STAGES * STAGE;
        const int at = @NAME@_reads[(first_step + step) * 8 + piece];  // negative behind the last tap
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int row = (int)threadIdx.x / 8 + i * (THREADS / 8);
            const long long from = at < 0 ? 0 : (long long)(begin[i] + at) * 16;
            async::copy<16, @NEAR@>(to + row * 128 + (piece ^ row % 8) * 16, packed + from, at >= 0);
        }
        if (threadIdx.x == 0) {
            const long long tile = ((long long)@GROUP@ * @ALL_STEPS@ + first_step + step) * @TILES_N@ + tile_n;
            bulk::expect(full + step % STAGES, TileB::BYTES);
            bulk::copy(to + TileA::BYTES, weights + tile * TileB::BYTES, TileB::BYTES, full + step % STAGES);
        }
    };
    const int group_m = warp / 4 / (BN / GN) * GM, warp_n = warp / 4 % (BN / GN) * GN;
    struct Pixel { @IMAGE@ image; int p0, p1, p2, exponent; bool exists; };
    Pixel place[GM / 64][2];
#pragma unroll
    for (int i = 0; i < GM / 64; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int m = first_m + group_m + warp % 4 * 16 + i * 64 + lane / 4 + r * 8;
@OUTPUT@
            place[i][r] = {photo, p0, p1, p2, @EXPONENT@, @EXISTS@};
        }
    float acc[GM / 64][GN / 2] = {};
    float drained[DRAINED ? GM / 64 : 1][DRAINED ? GN / 2 : 1] = {};
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) fetch(step);
        async::commit();
    }
    for (int step = 0; step < steps; ++step) {
        const unsigned char* const from_a = tiles + step % STAGES * STAGE;
        const unsigned char* const from_b = from_a + TileA::BYTES;
        async::wait<STAGES - 3>();
        wgmma::publish();
        __syncthreads();
        bulk::await(full + step % STAGES, step / STAGES & 1);
        wgmma::begin();
#pragma unroll
        for (int k = 0; k < 128 / Precision::BYTES; k += Precision::DEPTH)
#pragma unroll
            for (int i = 0; i < GM / 64; ++i)
#pragma unroll
                for (int n = 0; n < GN; n += WIDE)
                    Precision::multiply(wgmma::part<WIDE / 2>(acc[i] + n / 2),
                                        TileA::described(from_a, group_m + i * 64, k),
                                        TileB::described(from_b, warp_n + n, k));
        wgmma::commit();
        if (step > 0) {
            if (step + STAGES - 2 < steps) fetch(step + STAGES - 2);  // over what the step before the last one has read
            async::commit();
        }
        if constexpr (DRAINED) {
            if (step % (DRAINED ? DRAINED : 1) == DRAINED - 1) {
                wgmma::wait<0>();
#pragma unroll
                for (int i = 0; i < GM / 64; ++i) {
                    wgmma::hold(acc[i]);
#pragma unroll
                    for (int j = 0; j < GN / 2; ++j) drained[i][j] += acc[i][j], acc[i][j] = 0.0f;
                }
            }
        }
        wgmma::wait<1>();
    }
    wgmma::wait<0>();
#pragma unroll
    for (int i = 0; i < GM / 64; ++i) {
        wgmma::hold(acc[i]);
        if constexpr (DRAINED)
#pragma unroll
            for (int j = 0; j < GN / 2; ++j) acc[i][j] += drained[i][j];
    }
#pragma unroll
    for (int h = 0; h < GN / 8; ++h)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int n = first_n + warp_n + h * 8 + lane % 4 * 2 + side;
            const int channel = @GROUP@ * @N@ + n;
@CHANNEL_SCALE@
            if (@CHANNEL_EXISTS@) {
#pragma unroll
                for (int i = 0; i < GM / 64; ++i)
#pragma unroll
                    for (int r = 0; r < 2; ++r)
                        if (place[i][r].exists) {
                            const @IMAGE@ image = place[i][r].image;
                            const int p0 = place[i][r].p0, p1 = place[i][r].p1, p2 = place[i][r].p2;
@EPILOGUE@
                        }
            }
        }
}
