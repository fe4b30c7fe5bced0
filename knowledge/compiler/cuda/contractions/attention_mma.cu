// softmax(q k^T * scale + mask) v on tensor cores, the scores in registers (FlashAttention-2, Dao 2023). A warp owns
// @ROWS@ query rows and everything that is known of them; the block's warps share tiles of @KEYS@ keys and values, of
// which the next are on their way while one is multiplied. Sums of a tile leave the tensor cores, which cut off what they
// add, and are added to the rows' own in float32 when these are rescaled.
extern "C" __global__ void __launch_bounds__(@THREADS@, @MIN_BLOCKS@) @NAME@(@PARAMETERS@) {
    using P = mma::@PRECISION@;
    constexpr int ROWS = @ROWS@, KEYS = @KEYS@, STAGES = @STAGES@, THREADS = @THREADS@, BLOCK_ROWS = THREADS / 32 * ROWS;
    constexpr int HEAD = @HEAD@, VALUE = @VALUE@, COLUMNS = @COLUMNS@, QUERIES = @QUERIES@;
    constexpr int PART = @PART@;  // columns of the result that a warp adds up at a time
    constexpr bool IS_HELD = @IS_HELD@, IS_CAUSAL = @IS_CAUSAL@, IS_ADDED = @IS_ADDED@;
    // Powers of two are what the device computes. SCALE includes log2(e), which is UNIT where a mask is added; FACTOR is
    // what is left to multiply scores by.
    constexpr float SCALE = @SCALE@, UNIT = @UNIT@, FACTOR = IS_ADDED ? 1.0f : SCALE;
    using Keys = mma::Rows<P, HEAD>;
    using Values = mma::Rows<P, VALUE>;
    constexpr int STAGE = KEYS * (Keys::PITCH + Values::PITCH), QUERY_WORDS = BLOCK_ROWS * Keys::PITCH;
    extern __shared__ __align__(16) unsigned char staged[];
    unsigned* const stages = reinterpret_cast<unsigned*>(staged);
    unsigned* const queries = IS_HELD ? stages : stages + STAGES * STAGE;

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // The last rows of a causal attention see most keys: they go first.
    const int tile = IS_CAUSAL ? @TILES@ - 1 - (int)blockIdx.x % @TILES@ : (int)blockIdx.x % @TILES@;
    const int first_row = tile * BLOCK_ROWS;
@BATCH@
    const int end = IS_CAUSAL && first_row + BLOCK_ROWS < COLUMNS ? first_row + BLOCK_ROWS : COLUMNS;
    const int steps = (end + KEYS - 1) / KEYS;
@STEPS@
    const auto clear = [&] {  // what no copy writes: heads are padded to a multiple of 16
        if (!@IS_PADDED@) return;
        for (int word = threadIdx.x; word < @WORDS@; word += THREADS) stages[word] = 0;
        __syncthreads();
    };
    const auto fetch = [&](int stage, int first) {
        unsigned* const keys = stages + stage * STAGE;
        unsigned* const values = keys + KEYS * Keys::PITCH;
#pragma unroll
        for (int round = 0; round < (KEYS * @ITEMS_K@ + THREADS - 1) / THREADS; ++round) {
            int in, item;
            mma::place<@ITEMS_K@, THREADS>(round, in, item);
            if (KEYS * @ITEMS_K@ % THREADS && in >= KEYS) break;
            const int d = item * @WIDTH_K@;
            const @INDEX@ column = first + in;
            mma::bring<@BYTES_K@>(Keys::at(keys, in, d), @AT_K@, column < COLUMNS);
        }
#pragma unroll
        for (int round = 0; round < (KEYS * @ITEMS_V@ + THREADS - 1) / THREADS; ++round) {
            int in, item;
            mma::place<@ITEMS_V@, THREADS>(round, in, item);
            if (KEYS * @ITEMS_V@ % THREADS && in >= KEYS) break;
            const int d = item * @WIDTH_V@;
            const @INDEX@ column = first + in;
            mma::bring<@BYTES_V@>(Values::at(values, in, d), @AT_V@, column < COLUMNS);
        }
    };

    clear();
#pragma unroll
    for (int round = 0; round < (BLOCK_ROWS * @ITEMS_Q@ + THREADS - 1) / THREADS; ++round) {
        int in, item;
        mma::place<@ITEMS_Q@, THREADS>(round, in, item);
        if (BLOCK_ROWS * @ITEMS_Q@ % THREADS && in >= BLOCK_ROWS) break;
        const int d = item * @WIDTH_Q@;
        const @INDEX@ row = first_row + in;
        mma::bring<@BYTES_Q@>(Keys::at(queries, in, d), @AT_Q@, row < QUERIES);
    }
    unsigned held[ROWS / 16][IS_HELD ? HEAD / P::DEPTH : 1][4];
    if (IS_HELD) {
        async::commit();
        async::wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
            for (int k = 0; k < (IS_HELD ? HEAD / P::DEPTH : 1); ++k)
                Keys::left(held[i][k], queries, warp * ROWS + i * 16, k * P::DEPTH, lane);
        __syncthreads();
        clear();
    }
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (first_step + stage < end_step) fetch(stage, (first_step + stage) * KEYS);
        async::commit();
    }

    float acc[ROWS / 16][VALUE / 8 * 4] = {}, top[ROWS / 16][2], total[ROWS / 16][2] = {};
#pragma unroll
    for (int i = 0; i < ROWS / 16; ++i) top[i][0] = top[i][1] = -FOUNDRY_INF;

    for (int step = first_step; step < end_step; ++step) {
        async::wait<STAGES - 2>();
        __syncthreads();
        const int next = step + STAGES - 1, first = step * KEYS;
        if (next < end_step) fetch((next - first_step) % STAGES, next * KEYS);
        async::commit();
        if (IS_CAUSAL && first >= first_row + warp * ROWS + ROWS) continue;  // all of it is beyond the warp's rows
        const unsigned* const keys = stages + (step - first_step) % STAGES * STAGE;
        const unsigned* const values = keys + KEYS * Keys::PITCH;

        float score[ROWS / 16][KEYS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < HEAD; k += P::DEPTH) {
            typename P::A a[ROWS / 16];
#pragma unroll
            for (int i = 0; i < ROWS / 16; ++i) {
                unsigned words[4];
                if (!IS_HELD) Keys::left(words, queries, warp * ROWS + i * 16, k, lane);
                a[i] = P::a(IS_HELD ? held[i][IS_HELD ? k / P::DEPTH : 0] : words);
            }
#pragma unroll
            for (int n = 0; n < KEYS; n += 16) {
                unsigned words[4];
                Keys::right(words, keys, n, k, lane);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const typename P::B b = mma::right_of<P>(words, h);
#pragma unroll
                    for (int i = 0; i < ROWS / 16; ++i) P::multiply(score[i][n / 8 + h], a[i], b);
                }
            }
        }

        float rescale[ROWS / 16][2];
        const bool is_edge = first + KEYS > COLUMNS || (IS_CAUSAL && first + KEYS > first_row + warp * ROWS + 1);
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const @INDEX@ row = first_row + warp * ROWS + i * 16 + half * 8 + lane / 4;
@MASK@
                if (is_edge) {
#pragma unroll
                    for (int h = 0; h < KEYS / 4; ++h) {
                        const int column = first + h / 2 * 8 + lane % 4 * 2 + h % 2;
                        if (column >= COLUMNS || (IS_CAUSAL && column > row)) score[i][h / 2][half * 2 + h % 2] = -FOUNDRY_INF;
                    }
                }
                mma::weigh(score[i], half * 2, FACTOR, UNIT, top[i][half], total[i][half], rescale[i][half]);
            }
        }

        unsigned weight[ROWS / 16][KEYS / P::DEPTH][4];
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
            for (int k = 0; k < KEYS / P::DEPTH; ++k) mma::weights<P>(weight[i][k], score[i] + k * P::PER_WORD);
#pragma unroll
        for (int from = 0; from < VALUE; from += PART) {
            float part[ROWS / 16][PART / 8][4] = {};
#pragma unroll
            for (int k = 0; k < KEYS / P::DEPTH; ++k) {
                typename P::A a[ROWS / 16];
#pragma unroll
                for (int i = 0; i < ROWS / 16; ++i) a[i] = P::a(weight[i][k]);
#pragma unroll
                for (int d = 0; d < PART && from + d < VALUE; d += 16) {
                    unsigned words[4];
                    Values::across(words, values, k * P::DEPTH, from + d, lane);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const typename P::B b = mma::right_of<P>(words, h);
#pragma unroll
                        for (int i = 0; i < ROWS / 16; ++i) P::multiply(part[i][d / 8 + h], a[i], b);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
                for (int j = 0; j < PART / 2 && from / 2 + j < VALUE / 2; ++j) {
                    float& sum = acc[i][from / 2 + j];
                    sum = __fmaf_rn(sum, rescale[i][j / 2 % 2], part[i][j / 4][j % 4]);
                }
        }
    }

#pragma unroll
    for (int i = 0; i < ROWS / 16; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            total[i][half] += __shfl_xor_sync(0xffffffffu, total[i][half], 1);
            total[i][half] += __shfl_xor_sync(0xffffffffu, total[i][half], 2);
        }
        const @INDEX@ row = first_row + warp * ROWS + i * 16 + lane / 4 + lane % 2 * 8;
        const float whole = lane % 2 ? total[i][1] : total[i][0];
@BEFORE@
#pragma unroll
        for (int h = 0; h < VALUE / 8; ++h) {
            mma::side_by_side(mma::four(acc[i] + h * 4), lane);
            const @INDEX@ d = h * 8 + lane % 4 / 2 * 4;
@EPILOGUE@
        }
    }
}
