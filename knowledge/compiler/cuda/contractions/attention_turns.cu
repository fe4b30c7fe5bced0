// softmax(q k^T * scale + mask) v on the tensor cores of warpgroups (FlashAttention-3, Shah et al. 2024). One thread asks the
// copy engine for tiles of queries, keys and values ahead of their use. @GROUPS@ warpgroups own 64 query rows each, a warp 16
// of them: while weights are multiplied by a tile of values, the next tile's scores are computed and weighed, and with @IN_TURN@
// one warpgroup's products start when those of the one before have: it weighs while others multiply. A block takes one
// tile of rows after the other.
extern "C" __global__ void __launch_bounds__(@THREADS@, @MIN_BLOCKS@) @NAME@(@PARAMETERS@) {
    using P = wgmma::@PRECISION@;
    constexpr int KEYS = @KEYS@, STAGES = @STAGES@, GROUPS = @GROUPS@, WARPS = GROUPS * 4, BLOCK_ROWS = GROUPS * 64;
    constexpr int HEAD = @HEAD@, VALUE = @VALUE@, COLUMNS = @COLUMNS@, QUERIES = @QUERIES@;
    constexpr int WIDE = VALUE % 128 == 0 ? 128 : VALUE == 96 ? 96 : 64;  // columns of one instruction
    constexpr bool IS_CAUSAL = @IS_CAUSAL@, IS_ADDED = @IS_ADDED@, IN_TURN = @IN_TURN@, LAZY = @LAZY@;
    constexpr bool IS_FULL = QUERIES % BLOCK_ROWS == 0;  // every warp has rows
    // Powers of two are what the device computes. SCALE includes log2(e), which is UNIT where a mask is added; FACTOR is
    // what is left to multiply scores by.
    constexpr float SCALE = @SCALE@, UNIT = @UNIT@, FACTOR = IS_ADDED ? 1.0f : SCALE;
    using Queries = wgmma::Boxes<P, BLOCK_ROWS>;
    using Tile = wgmma::Boxes<P, KEYS>;
    constexpr int HEAD_BOXES = (HEAD + 63) / 64, VALUE_BOXES = (VALUE + 63) / 64;
    constexpr int QUERY_BYTES = HEAD_BOXES * Queries::BOX, KEY_BYTES = HEAD_BOXES * Tile::BOX, VALUE_BYTES = VALUE_BOXES * Tile::BOX;
    constexpr int MASK_BYTES = @MASK_BOXES@ * Queries::BOX;  // of a mask that comes with the keys
    extern __shared__ __align__(1024) unsigned char tiles[];
    unsigned char* const queries = tiles;
    unsigned char* const keys = queries + QUERY_BYTES;
    unsigned char* const values = keys + STAGES * KEY_BYTES;
    unsigned char* const masks = values + STAGES * VALUE_BYTES;
    bulk::Barrier* const full_keys = reinterpret_cast<bulk::Barrier*>(masks + STAGES * MASK_BYTES);
    bulk::Barrier* const empty_keys = full_keys + STAGES;
    bulk::Barrier* const full_values = empty_keys + STAGES;
    bulk::Barrier* const empty_values = full_values + STAGES;
    bulk::Barrier* const full_queries = empty_values + STAGES;
    bulk::Barrier* const empty_queries = full_queries + 1;
    const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);  // the same in all lanes

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            bulk::prepare(full_keys + stage, 1), bulk::prepare(empty_keys + stage, WARPS);
            bulk::prepare(full_values + stage, 1), bulk::prepare(empty_values + stage, WARPS);
        }
        bulk::prepare(full_queries, 1), bulk::prepare(empty_queries, WARPS);
        bulk::publish();
    }
    __syncthreads();

    // The next tile of rows of this block: rows that share keys are near each other, so that L2 serves the keys; where rows
    // see more keys the later they are, the last go first, and rounds go to and fro, so that blocks end together.
    struct Place { int first_row, pair, first_step, end_step; };
    const auto find = [&](int round, Place& place) {
        constexpr int PAIRS = @PAIRS@, TILES = @TILES@, NEAR = @NEAR@, ITEMS = PAIRS * TILES;
        const int begin = round * (int)gridDim.x;
        const int item = begin + (round % 2 ? (int)gridDim.x - 1 - (int)blockIdx.x : (int)blockIdx.x);
        if (begin >= ITEMS || item >= ITEMS) return false;
        const int part = item / (NEAR * TILES), in = item % (NEAR * TILES);
        const int pairs = PAIRS - part * NEAR < NEAR ? PAIRS - part * NEAR : NEAR;
        place.first_row = (TILES - 1 - in / pairs) * BLOCK_ROWS;
        place.pair = part * NEAR + in % pairs;
        const int end = IS_CAUSAL && place.first_row + BLOCK_ROWS < COLUMNS ? place.first_row + BLOCK_ROWS : COLUMNS;
        const int steps = (end + KEYS - 1) / KEYS, per_split = (steps + @SPLITS@ - 1) / @SPLITS@;
        place.first_step = place.pair % @SPLITS@ * per_split;
        place.end_step = place.first_step + per_split < steps ? place.first_step + per_split : steps;
        return true;
    };
    Place place;
    int stage = 0, parity = 0;  // of the ring, of keys and values alike
    const auto advance = [&](int& stage, int& parity) {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    };

    if (warp >= WARPS) {
@GIVE_UP@
        if (threadIdx.x != WARPS * 32) return;
        int value_stage = 0, value_parity = 0, tile_parity = 0;
        for (int round = 0; find(round, place); ++round) {
            const int first_row = place.first_row;
@BATCH@
            const auto copy_keys = [&](int step) {
                bulk::await(empty_keys + stage, parity ^ 1);
                bulk::expect(full_keys + stage, KEY_BYTES + MASK_BYTES);
                for (int box = 0; box < HEAD_BOXES; ++box)
                    bulk::copy_box(keys + stage * KEY_BYTES + box * Tile::BOX, &map_k, full_keys + stage, @BOX_K@);
@COPY_MASK@
                advance(stage, parity);
            };
            const auto copy_values = [&](int step) {
                bulk::await(empty_values + value_stage, value_parity ^ 1);
                bulk::expect(full_values + value_stage, VALUE_BYTES);
                for (int box = 0; box < VALUE_BOXES; ++box)
                    bulk::copy_box(values + value_stage * VALUE_BYTES + box * Tile::BOX, &map_v, full_values + value_stage, @BOX_V@);
                advance(value_stage, value_parity);
            };
            if (place.first_step >= place.end_step) continue;
            copy_keys(place.first_step);
            bulk::await(empty_queries, tile_parity ^ 1);
            bulk::expect(full_queries, QUERY_BYTES);
            for (int box = 0; box < HEAD_BOXES; ++box)
                bulk::copy_box(queries + box * Queries::BOX, &map_q, full_queries, @BOX_Q@);
            tile_parity ^= 1;
            for (int step = place.first_step; step < place.end_step; ++step) {
                if (step + 1 < place.end_step) copy_keys(step + 1);
                copy_values(step);
            }
        }
        return;
    }
@CLAIM@
    const int group = warp / 4;
    const auto give_back = [&](bulk::Barrier* barrier) {
        if (lane == 0) bulk::arrive(barrier);
    };
    if (IN_TURN && group == GROUPS - 1) bulk::pass(1, 256);
    int value_stage = 0, value_parity = 0, tile_parity = 0;
    for (int round = 0; find(round, place); ++round) {
        const int first_row = place.first_row, first_step = place.first_step, end_step = place.end_step;
@BATCH@
        const bool has_rows = IS_FULL || first_row + warp * 16 < QUERIES;
        int own_end = end_step;  // where the steps end that the warpgroup's own rows need
        if (@PASS_BY@) {
            const int own_row = first_row + group * 64, seen = IS_CAUSAL ? (own_row + 64 + KEYS - 1) / KEYS : end_step;
            if (seen < end_step) own_end = seen;
            if ((!IS_FULL && own_row >= QUERIES) || own_end < first_step) own_end = first_step < end_step ? first_step : end_step;
        }
        float acc[1][VALUE / 2] = {}, top[1][2] = {-FOUNDRY_INF, -FOUNDRY_INF}, total[1][2] = {};
        float score[1][KEYS / 8][4], rescale[2] = {1.0f, 1.0f};
        unsigned weight[KEYS / 16][4];
        if (!IS_FULL) {
#pragma unroll
            for (int k = 0; k < KEYS / 4; ++k) weight[k / 4][k % 4] = 0;
        }
        const auto start_scores = [&] {
            const unsigned char* const from = keys + stage * KEY_BYTES;
            wgmma::begin();
#pragma unroll
            for (int k = 0; k < HEAD; k += 16) {
                const unsigned long long a = Queries::along(queries, group * 64, k), b = Tile::along(from, 0, k);
                if (k == 0) P::first(wgmma::part<KEYS / 2>(score[0][0]), a, b);
                else P::multiply(wgmma::part<KEYS / 2>(score[0][0]), a, b);
            }
            wgmma::commit();
        };
        const auto start_values = [&] {
            const unsigned char* const from = values + value_stage * VALUE_BYTES;
            wgmma::begin();
#pragma unroll
            for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
                for (int d = 0; d < VALUE; d += WIDE)
                    wgmma::Held<P>::multiply(wgmma::part<WIDE / 2>(acc[0] + d / 2), weight[k], Tile::across(from, k * 16, d));
            wgmma::commit();
        };
        constexpr int i = 0;  // a warp has one part of 16 rows
        const auto weigh = [&](int step, const unsigned char* mask) {
            if (!has_rows) return;
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
            mma::weigh_both<LAZY>(score[0], FACTOR, UNIT, top[0], total[0], rescale);
        };
        const auto take_weights = [&] {
            if (!has_rows) return;
#pragma unroll
            for (int k = 0; k < KEYS / 16; ++k) mma::weights<mma::@PRECISION@>(weight[k], score[0] + 2 * k);
        };

        if (first_step < end_step) bulk::await(full_queries, tile_parity), tile_parity ^= 1;
        if (first_step < own_end) {
            bulk::await(full_keys + stage, parity);
            start_scores();
            wgmma::wait<0>();
            wgmma::hold(wgmma::part<KEYS / 2>(score[0][0]));
            if (!MASK_BYTES) give_back(empty_keys + stage);
            if (first_step + 1 == own_end) give_back(empty_queries);
            weigh(first_step, masks + stage * MASK_BYTES);
            if (MASK_BYTES) give_back(empty_keys + stage);
            advance(stage, parity);
            take_weights();
        }
        for (int step = first_step + 1; step < own_end; ++step) {
            bulk::await(full_keys + stage, parity);
            if (IN_TURN) bulk::meet(1 + group, 256);
            start_scores();
            bulk::await(full_values + value_stage, value_parity);
            start_values();
            if (IN_TURN) bulk::pass(1 + (group + 1) % GROUPS, 256);
            wgmma::wait<1>();
            wgmma::hold(wgmma::part<KEYS / 2>(score[0][0]));
            if (!MASK_BYTES) give_back(empty_keys + stage);
            if (step + 1 == own_end) give_back(empty_queries);
            weigh(step, masks + stage * MASK_BYTES);
            if (MASK_BYTES) give_back(empty_keys + stage);
            advance(stage, parity);
            // Never so: it keeps the compiler from waiting before all weights are known.
            if (__any_sync(0xffffffffu, total[0][0] < 0.0f || total[0][1] < 0.0f)) wgmma::wait<0>();
            wgmma::wait<0>();
            wgmma::hold(acc[0]);
            give_back(empty_values + value_stage);
            advance(value_stage, value_parity);
            if (!LAZY || __any_sync(0xffffffffu, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
                for (int j = 0; j < VALUE / 2; ++j) acc[0][j] *= rescale[j / 2 % 2];
            }
            take_weights();
        }
        if (first_step < own_end) {
            bulk::await(full_values + value_stage, value_parity);
            start_values();
            wgmma::wait<0>();
            wgmma::hold(acc[0]);
            give_back(empty_values + value_stage);
            advance(value_stage, value_parity);
        } else if (first_step < end_step) {
            give_back(empty_queries);
        }
        for (int step = own_end; step < end_step; ++step) {
            if (IN_TURN && step > first_step) bulk::meet(1 + group, 256), bulk::pass(1 + (group + 1) % GROUPS, 256);
            bulk::await(full_keys + stage, parity);
            give_back(empty_keys + stage);
            advance(stage, parity);
            bulk::await(full_values + value_stage, value_parity);
            give_back(empty_values + value_stage);
            advance(value_stage, value_parity);
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
    if (IN_TURN && group == 0) bulk::meet(1, 256);
}
