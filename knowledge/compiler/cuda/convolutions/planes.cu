// acc[pixel, channel] = sum over input channels of x * weight of a 1x1 convolution in TF32, in tiles of 128 pixels times @BN@
// channels. The pixels of a channel lie side by side, so a tile's rows are copied as they are, 32 channels a stage; all
// weights stay in shared memory. @GROUPS@ warpgroups have tiles and stages of their own, and hold x in registers, where it is
// rounded: a lane's four rows of the product are four neighbouring pixels, which it loads and stores as one vector.
extern "C" __global__ void __launch_bounds__(@THREADS@, 1) @NAME@(@PARAMETERS@) {
    constexpr int BM = 128, BN = @BN@, STAGES = @STAGES@, GROUPS = @GROUPS@, C = @C@, STEPS = (C + 31) / 32;
    constexpr int PIXELS = @PIXELS@, TILES_OF_IMAGE = (PIXELS + BM - 1) / BM, TILES = @BATCH@ * TILES_OF_IMAGE;
    constexpr int PITCH = BM + 8, STAGE = 32 * PITCH;  // floats: what a warp loads at once lies in different banks
    constexpr int CHUNK = BN % 32 == 0 ? 32 : BN % 16 == 0 ? 16 : 8, SLAB_PITCH = BM + 4;  // channels stored at a time
    using Precision = wgmma::Tf32;
    using TileB = wgmma::Operand<Precision, BN>;
    extern __shared__ __align__(1024) unsigned char tiles[];
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;  // warp: the same in all lanes
    const int group = warp / 4;
    float* const all_stages = reinterpret_cast<float*>(tiles + STEPS * TileB::BYTES);
    float* const ring = all_stages + group * STAGES * STAGE;
    float* const slab = all_stages + GROUPS * STAGES * STAGE + group * CHUNK * SLAB_PITCH;
    bulk::Barrier* const full = reinterpret_cast<bulk::Barrier*>(
        all_stages + GROUPS * (STAGES * STAGE + @SLABS@ * CHUNK * SLAB_PITCH)) + group * STAGES;
    const int first_n = blockIdx.x % @TILES_N@ * BN;
    const int first_tile = blockIdx.x / @TILES_N@ * GROUPS + group, stride = gridDim.x / @TILES_N@ * GROUPS;

    if (threadIdx.x % 128 == 0) {
        for (int stage = 0; stage < STAGES; ++stage) bulk::prepare(full + stage, 1);
        bulk::publish();
    }
    for (int item = threadIdx.x; item < BN * STEPS * 8; item += @THREADS@) {
        const int row = item / (STEPS * 8), c = item % (STEPS * 8) * 4;
        Vec<float, 4> weights = {};
        if (first_n + row < @N@ && c < C) weights = load_vec<4>(b_@WEIGHT@ + (first_n + row) * C + c);
        TileB::keep<4, true>(tiles + c / 32 * TileB::BYTES, row, c % 32, weights);
    }
    wgmma::publish();
    __syncthreads();

    const auto fetch = [&](int round) {  // what a stage holds in this round, by a warp: a channel each lane
        const int tile = first_tile + round / STEPS * stride, first_c = round % STEPS * 32;
        if (tile >= TILES) return;
        const int photo = tile / TILES_OF_IMAGE, first = tile % TILES_OF_IMAGE * BM;
        const int wide = PIXELS - first < BM ? PIXELS - first : BM, rows = C - first_c < 32 ? C - first_c : 32;
        if (lane == 0) bulk::expect(full + round % STAGES, rows * wide * 4);
        __syncwarp();
        if (lane < rows)
            bulk::copy(ring + round % STAGES * STAGE + lane * PITCH, @ORIGIN@ + (first_c + lane) * @STRIDE_C@ + first, wide * 4,
                       full + round % STAGES);
    };
    if (warp % 4 == 0)
        for (int round = 0; round < STAGES; ++round) fetch(round);

    int round = 0;
    for (int tile = first_tile; tile < TILES; tile += stride) {
        float acc[2][BN / 2] = {};
        for (int step = 0; step < STEPS; ++step, ++round) {
            const float* const from =
                ring + round % STAGES * STAGE + lane % 4 * PITCH + warp % 4 * 32 + lane / 4 * 4;
            unsigned held[4][2][4];
            bulk::await(full + round % STAGES, round / STAGES & 1);
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int late = 0; late < 2; ++late) {
                    Vec<float, 4> x = {};
                    if (C % 32 == 0 || step * 32 + k * 8 < C) x = load_vec<4>(from + (k * 8 + late * 4) * PITCH);
#pragma unroll
                    for (int j = 0; j < 4; ++j) held[k][j / 2][late * 2 + j % 2] = Precision::pack(x.at[j]);
                }
            bulk::meet(1 + group, 128);  // all have read the stage
            if (warp % 4 == 0) fetch(round + STAGES);
            wgmma::begin();
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    wgmma::held_tf32(acc[i], held[k][i], TileB::described(tiles + step * TileB::BYTES, 0, k * 8));
            wgmma::commit();
            wgmma::wait<0>();
            wgmma::hold(acc[0]), wgmma::hold(acc[1]);
        }
        const @IMAGE@ image = tile / TILES_OF_IMAGE;
        const int first = tile % TILES_OF_IMAGE * BM, p0 = 0, p1 = 0;
@STORES@
    }
}
