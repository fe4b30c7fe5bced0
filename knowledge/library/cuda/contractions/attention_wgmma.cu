// softmax(q k^T * scale + mask) v on the tensor cores of warpgroups, which read keys and values from shared memory
// (FlashAttention-3, Shah et al. 2024). A warpgroup owns 64 query rows, a warp 16 of them. While weights are multiplied by
// a tile of values, the next tile's scores are computed and weighed; copies of the tiles after it are on their way.
extern "C" __global__ void __launch_bounds__(@THREADS@, 1) @NAME@(@PARAMETERS@) {
    using P = wgmma::@PRECISION@;
    constexpr int KEYS = @KEYS@, THREADS = @THREADS@, BLOCK_ROWS = THREADS / 2;
    constexpr int HEAD = @HEAD@, VALUE = @VALUE@, COLUMNS = @COLUMNS@, QUERIES = @QUERIES@;
    constexpr int WIDE = VALUE % 128 ? 64 : 128;  // columns of one instruction
    constexpr bool IS_CAUSAL = @IS_CAUSAL@, IS_ADDED = @IS_ADDED@;
    // Powers of two are what the device computes. SCALE includes log2(e), which is UNIT where a mask is added; FACTOR is
    // what is left to multiply scores by.
    constexpr float SCALE = @SCALE@, UNIT = @UNIT@, FACTOR = IS_ADDED ? 1.0f : SCALE;
    using Queries = wgmma::Boxes<P, BLOCK_ROWS>;
    using Tile = wgmma::Boxes<P, KEYS>;
    constexpr int KEY_BYTES = KEYS * HEAD * 2, VALUE_BYTES = KEYS * VALUE * 2;
    extern __shared__ __align__(1024) unsigned char tiles[];
    unsigned char* const queries = tiles;
    unsigned char* const keys = queries + BLOCK_ROWS * HEAD * 2;
    unsigned char* const values = keys + 2 * KEY_BYTES;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // The last rows of a causal attention see most keys: they go first.
    const int tile = IS_CAUSAL ? @TILES@ - 1 - (int)blockIdx.x % @TILES@ : (int)blockIdx.x % @TILES@;
    const int first_row = tile * BLOCK_ROWS;
@BATCH@
    const int end = IS_CAUSAL && first_row + BLOCK_ROWS < COLUMNS ? first_row + BLOCK_ROWS : COLUMNS;
    const int steps = (end + KEYS - 1) / KEYS;
@STEPS@
    if (@IS_PADDED@) {  // what no copy writes: heads are padded to a multiple of 64
        for (int word = threadIdx.x; word < @WORDS@; word += THREADS) reinterpret_cast<unsigned*>(tiles)[word] = 0;
        __syncthreads();
    }
    const auto fetch_keys = [&](int step) {
        unsigned char* const to = keys + (step - first_step) % 2 * KEY_BYTES;
#pragma unroll
        for (int round = 0; round < (KEYS * @ITEMS_K@ + THREADS - 1) / THREADS; ++round) {
            int in, item;
            mma::place<@ITEMS_K@, THREADS>(round, in, item);
            if (KEYS * @ITEMS_K@ % THREADS && in >= KEYS) break;
            const int d = item * @WIDTH_K@;
            const @INDEX@ column = step * KEYS + in;
            mma::bring<@BYTES_K@>(Tile::at(to, in, d), @AT_K@, column < COLUMNS);
        }
    };
    const auto fetch_values = [&](int step) {
        unsigned char* const to = values + (step - first_step) % 2 * VALUE_BYTES;
#pragma unroll
        for (int round = 0; round < (KEYS * @ITEMS_V@ + THREADS - 1) / THREADS; ++round) {
            int in, item;
            mma::place<@ITEMS_V@, THREADS>(round, in, item);
            if (KEYS * @ITEMS_V@ % THREADS && in >= KEYS) break;
            const int d = item * @WIDTH_V@;
            const @INDEX@ column = step * KEYS + in;
            mma::bring<@BYTES_V@>(Tile::at(to, in, d), @AT_V@, column < COLUMNS);
        }
    };

    float acc[1][VALUE / 8 * 4] = {}, top[1][2] = {-FOUNDRY_INF, -FOUNDRY_INF}, total[1][2] = {};
    float score[1][KEYS / 8][4], rescale[2];
    unsigned weight[KEYS / 16][4];
    const auto start_scores = [&](int step) {
        const unsigned char* const from = keys + (step - first_step) % 2 * KEY_BYTES;
#pragma unroll
        for (int h = 0; h < KEYS / 2; ++h) score[0][h / 4][h % 4] = 0.0f;
        wgmma::begin();
#pragma unroll
        for (int k = 0; k < HEAD; k += 16)
            P::multiply(wgmma::part<KEYS / 2>(score[0][0]), Queries::along(queries, warp / 4 * 64, k), Tile::along(from, 0, k));
        wgmma::commit();
    };
    const auto start_values = [&](int step) {
        const unsigned char* const from = values + (step - first_step) % 2 * VALUE_BYTES;
        wgmma::begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
            for (int d = 0; d < VALUE; d += WIDE)
                wgmma::Held<P>::multiply(wgmma::part<WIDE / 2>(acc[0] + d / 2), weight[k], Tile::across(from, k * 16, d));
        wgmma::commit();
    };
    const auto arrive = [] {  // what was asked for is there, and what is overwritten next has been read
        async::wait<0>();
        wgmma::publish();
        __syncthreads();
    };
    constexpr int i = 0;  // a warp has one part of 16 rows
    const auto weigh = [&](int step) {
        const int first = step * KEYS;
        const bool is_edge = first + KEYS > COLUMNS || (IS_CAUSAL && first + KEYS > first_row + warp * 16 + 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const @INDEX@ row = first_row + warp * 16 + half * 8 + lane / 4;
@MASK@
            if (is_edge) {
#pragma unroll
                for (int h = 0; h < KEYS / 4; ++h) {
                    const int column = first + h / 2 * 8 + lane % 4 * 2 + h % 2;
                    if (column >= COLUMNS || (IS_CAUSAL && column > row)) score[0][h / 2][half * 2 + h % 2] = -FOUNDRY_INF;
                }
            }
        }
        mma::weigh(score[0], FACTOR, UNIT, top[0], total[0], rescale);
    };
    const auto take_weights = [&] {
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) mma::weights<mma::@PRECISION@>(weight[k], score[0] + 2 * k);
    };

    if (first_step < end_step) {
#pragma unroll 4
        for (int round = 0; round < (BLOCK_ROWS * @ITEMS_Q@ + THREADS - 1) / THREADS; ++round) {
            int in, item;
            mma::place<@ITEMS_Q@, THREADS>(round, in, item);
            if (BLOCK_ROWS * @ITEMS_Q@ % THREADS && in >= BLOCK_ROWS) break;
            const int d = item * @WIDTH_Q@;
            const @INDEX@ row = first_row + in;
            mma::bring<@BYTES_Q@>(Queries::at(queries, in, d), @AT_Q@, row < QUERIES);
        }
        fetch_keys(first_step);
        async::commit();
        fetch_values(first_step);
        if (first_step + 1 < end_step) fetch_keys(first_step + 1);
        async::commit();
        async::wait<1>();
        wgmma::publish();
        __syncthreads();
        start_scores(first_step);
        wgmma::wait<0>();
        wgmma::hold(wgmma::part<KEYS / 2>(score[0][0]));
        weigh(first_step);
        take_weights();
    }
    for (int step = first_step; step + 1 < end_step; ++step) {
        arrive();
        fetch_values(step + 1);
        if (step + 2 < end_step) fetch_keys(step + 2);
        async::commit();
        start_scores(step + 1);
        start_values(step);
        wgmma::wait<1>();
        wgmma::hold(wgmma::part<KEYS / 2>(score[0][0]));
        weigh(step + 1);
        wgmma::wait<0>();
        wgmma::hold(acc[0]);
#pragma unroll
        for (int j = 0; j < VALUE / 2; ++j) acc[0][j] *= rescale[j / 2 % 2];
        take_weights();
    }
    if (first_step < end_step) {
        arrive();
        start_values(end_step - 1);
        wgmma::wait<0>();
        wgmma::hold(acc[0]);
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        total[i][half] += __shfl_xor_sync(0xffffffffu, total[i][half], 1);
        total[i][half] += __shfl_xor_sync(0xffffffffu, total[i][half], 2);
    }
    const @INDEX@ row = first_row + warp * 16 + lane / 4 + lane % 2 * 8;
    const float whole = lane % 2 ? total[i][1] : total[i][0];
@BEFORE@
#pragma unroll
    for (int h = 0; h < VALUE / 8; ++h) {
        mma::side_by_side(mma::four(acc[i] + h * 4), lane);
        const @INDEX@ d = h * 8 + lane % 4 / 2 * 4;
@EPILOGUE@
    }
}
