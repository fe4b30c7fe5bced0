// softmax(q k^T * scale + mask) v without the score matrix in memory. A warp owns @ROWS@ query rows; the block's warps share
// tiles of 32 keys and values. A lane is a key while scores are computed and a slice of the head while values are added.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    constexpr int ROWS = @ROWS@, WARPS = @WARPS@, HEAD = @HEAD@, VALUE = @VALUE@, THREADS = @THREADS@;
    constexpr int PITCH = HEAD + 1, SLICES = (VALUE + 31) / 32, COLUMNS = @COLUMNS@, QUERIES = @QUERIES@;
    extern __shared__ __align__(16) unsigned char staged[];
    T* const keys = reinterpret_cast<T*>(staged);   // [32][PITCH], odd pitch: each lane its own bank
    T* const values = keys + 32 * PITCH;            // [32][VALUE]
    T* const queries = values + 32 * VALUE;         // [WARPS * ROWS][HEAD]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_row = ((int)blockIdx.x % @TILES@) * (WARPS * ROWS);
@BATCH@
    for (int item = threadIdx.x; item < WARPS * ROWS * HEAD; item += THREADS) {
        const int row = first_row + item / HEAD, d = item % HEAD;
        queries[item] = row < QUERIES ? (T)(@LOAD_Q@) * (T)@SCALE@ : (T)0;
    }
    T top[ROWS], total[ROWS], acc[ROWS][SLICES];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        top[r] = -(T)FOUNDRY_INF, total[r] = 0;
#pragma unroll
        for (int s = 0; s < SLICES; ++s) acc[r][s] = 0;
    }
    const int end = @END@;
    for (int first = 0; first < end; first += 32) {
        __syncthreads();
        for (int item = threadIdx.x; item < 32 * HEAD; item += THREADS) {
            const int column = first + item / HEAD, d = item % HEAD;
            keys[item / HEAD * PITCH + d] = column < COLUMNS ? (T)(@LOAD_K@) : (T)0;
        }
        for (int item = threadIdx.x; item < 32 * VALUE; item += THREADS) {
            const int column = first + item / VALUE, d = item % VALUE;
            values[item] = column < COLUMNS ? (T)(@LOAD_V@) : (T)0;
        }
        __syncthreads();
        T score[ROWS] = {};
#pragma unroll 8
        for (int d = 0; d < HEAD; ++d) {
            const T key = keys[lane * PITCH + d];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) score[r] += queries[(warp * ROWS + r) * HEAD + d] * key;
        }
        const int column = first + lane;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int row = first_row + warp * ROWS + r;
            if (row < QUERIES && column < COLUMNS) {
@MASK@
            }
            if (column >= COLUMNS@CAUSAL@) score[r] = -(T)FOUNDRY_INF;
            T highest = score[r];
#pragma unroll
            for (int mask = 16; mask > 0; mask /= 2)
                highest = math::maximum(highest, __shfl_xor_sync(0xffffffffu, highest, mask));
            highest = math::maximum(highest, top[r]);
            // While all keys of a row are masked there is nothing to rescale.
            const bool empty = highest == -(T)FOUNDRY_INF;
            const T rescale = empty ? (T)1 : math::exp(top[r] - highest);
            score[r] = empty ? (T)0 : math::exp(score[r] - highest);
            T sum = score[r];
#pragma unroll
            for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
            total[r] = total[r] * rescale + sum;
            top[r] = highest;
#pragma unroll
            for (int s = 0; s < SLICES; ++s) acc[r][s] *= rescale;
        }
#pragma unroll 4
        for (int j = 0; j < 32; ++j) {
            T weight[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) weight[r] = __shfl_sync(0xffffffffu, score[r], j);
#pragma unroll
            for (int s = 0; s < SLICES; ++s) {
                const T value = VALUE % 32 == 0 || lane + 32 * s < VALUE ? values[j * VALUE + lane + 32 * s] : (T)0;
#pragma unroll
                for (int r = 0; r < ROWS; ++r) acc[r][s] += weight[r] * value;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const @INDEX@ row = first_row + warp * ROWS + r;
#pragma unroll
        for (int s = 0; s < SLICES; ++s) {
            const @INDEX@ d = lane + 32 * s;
            if (row < QUERIES && d < VALUE) {
                const T result = acc[r][s] / (total[r] == (T)0 ? @NONE@ : total[r]);  // a total of 0: all masked
@STORE@
            }
        }
    }
}
