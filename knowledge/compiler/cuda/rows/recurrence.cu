// @CELL@: @LAYERS@ layers of @HIDDEN@ units, @DIRECTIONS@ directions, @STEPS@ steps, in one launch whose blocks all run at
// once. A block has @UNITS@ units of a layer and keeps their weights (@HOME@); each step it takes the states of all
// units of the step before, of its own layer and the one below, from global memory as soon as they are there.
struct @NAME@_cell {
    const @ELEMENT@ *weight, *bias, *below, *below_bias, *h, *c, *given;
    long long weight_row, below_row, h_row, c_row, given_step, given_row;
};

// All states are missing; what only fills rows up is zero.
extern "C" __global__ void @NAME@_clear(float* exchanged, long long vectors) {
    constexpr int ROW = @PADDED@ / 4;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long v = (long long)blockIdx.x * blockDim.x + threadIdx.x; v < vectors; v += stride) {
        const int first = (int)(v % ROW) * 4;
        const float missing = __int_as_float((int)exchange::MISSING);
        float4 x;
        x.x = first < @HIDDEN@ ? missing : 0.0f;
        x.y = first + 1 < @HIDDEN@ ? missing : 0.0f;
        x.z = first + 2 < @HIDDEN@ ? missing : 0.0f;
        x.w = first + 3 < @HIDDEN@ ? missing : 0.0f;
        reinterpret_cast<float4*>(exchanged)[v] = x;
    }
}

extern "C" __global__ void __launch_bounds__(@THREADS@, 1) @NAME@(@PARAMETERS@, float* exchanged) {
    constexpr int GATES = @GATES@, HIDDEN = @HIDDEN@, PADDED = @PADDED@, STEPS = @STEPS@, BATCH = @BATCH@;
    constexpr int UNITS = @UNITS@, SPLITS = @SPLITS@, SLICES = @SLICES@, TILE = @TILE@, DIRECTIONS = @DIRECTIONS@;
    constexpr int THREADS = @THREADS@, K_LANES = @K_LANES@, K_WARPS = @K_WARPS@, R = @R@, J = @J@;
    constexpr int ROW_LANES = 32 / K_LANES, ROW_WARPS = THREADS / 32 / K_WARPS, ROWS = ROW_LANES * ROW_WARPS * R;
    constexpr int PITCH = 4 * K_LANES * K_WARPS * J, POINTS = UNITS * TILE, OWN = (POINTS + THREADS - 1) / THREADS;
    constexpr int SUMS = (R * TILE + K_LANES - 1) / K_LANES * K_LANES, PER_LANE = SUMS / K_LANES;
    constexpr bool STACKED = @STACKED@, ALONE = SPLITS == 1, APART = @APART@;  // apart: both products' sums
    typedef @ELEMENT@ E;
    extern __shared__ float4 shared[];
    float* const own_h = reinterpret_cast<float*>(shared);
    float* const below_h = own_h + TILE * PITCH;
    float* const own_sums = below_h + (STACKED ? TILE * PITCH : 0);
    float* const below_sums = own_sums + K_WARPS * TILE * ROWS;
    float* const kept = below_sums + (APART ? K_WARPS * TILE * ROWS : 0);

    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int k_lane = lane / ROW_LANES, k_warp = warp % K_WARPS;  // neighbours read the same state
    const int first_row = ((warp / K_WARPS) * ROW_LANES + lane % ROW_LANES) * R;
    const int which = blockIdx.x / (SLICES * SPLITS), slice = blockIdx.x / SPLITS % SLICES;
    const int first_unit = blockIdx.x % SPLITS * UNITS, direction = which % DIRECTIONS;
    const bool stacked = STACKED && which >= DIRECTIONS;
    @NAME@_cell cell = {};
@CELLS@

    // ---- weights, once

    const auto column = [&](int j) { return ((j * K_WARPS + k_warp) * K_LANES + k_lane) * 4; };
    const auto in_memory = [&](const E* weight, long long stride, int row, int k) {
        const int unit = first_unit + row / GATES;
        float4 w = {0.0f, 0.0f, 0.0f, 0.0f};
        if (row < GATES * UNITS && unit < HIDDEN) {
            const E* const from = weight + (row % GATES * (long long)HIDDEN + unit) * stride + k;
            if (k < HIDDEN) w.x = @WIDEN_0@;
            if (k + 1 < HIDDEN) w.y = @WIDEN_1@;
            if (k + 2 < HIDDEN) w.z = @WIDEN_2@;
            if (k + 3 < HIDDEN) w.w = @WIDEN_3@;
        }
        return w;
    };
@WEIGHTS@

    // ---- rows of weights times states; the sums of a warp's lanes are folded so that each keeps a share

    float acc[SUMS];
    const auto clear = [&]() {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) acc[i] = 0.0f;
    };
    const auto multiply = [&](auto weight, const float* states) {
@UNROLL@
        for (int j = 0; j < J; ++j) {
            float4 w[R];
#pragma unroll
            for (int r = 0; r < R; ++r) w[r] = weight(r, j);
#pragma unroll
            for (int b = 0; b < TILE; ++b) {
                const float4 x = *reinterpret_cast<const float4*>(states + b * PITCH + column(j));
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    float& sum = acc[b * R + r];
                    sum = fmaf(w[r].w, x.w, fmaf(w[r].z, x.z, fmaf(w[r].y, x.y, fmaf(w[r].x, x.x, sum))));
                }
            }
        }
    };
    const auto fold = [&](float* sums) {
        int count = SUMS;
#pragma unroll
        for (int apart = K_LANES / 2; apart > 0; apart /= 2) {
            count /= 2;
            const bool upper = (k_lane & apart) != 0;
#pragma unroll
            for (int i = 0; i < SUMS / 2; ++i) {
                if (i < count) {
                    const float mine = upper ? acc[count + i] : acc[i], other = upper ? acc[i] : acc[count + i];
                    acc[i] = mine + __shfl_xor_sync(0xffffffffu, other, apart * ROW_LANES);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const int at = k_lane * PER_LANE + i;
            if (at < R * TILE) sums[(k_warp * TILE + at / R) * ROWS + first_row + at % R] = acc[i];
        }
    };

    // ---- states of a step into shared memory, as they come

    const auto place = [&](int owner, int step, int row) {
        return exchanged + (((long long)owner * STEPS + step) * BATCH + row) * PADDED;
    };
    const auto take = [&](int owner, int step, int first, float* states) {
        constexpr int ROW = PADDED / 4, AT_ONCE = @AT_ONCE@;
        const int vectors = min(TILE, BATCH - first) * ROW;
        const float* const from = place(owner, step, first);
        for (int begin = thread; begin < vectors; begin += THREADS * AT_ONCE) {
            float4 x[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                if (begin + i * THREADS < vectors) x[i] = exchange::read(from + 4 * (begin + i * THREADS));
            // Looked for again all at once: one after the other, each would take its own way through the second cache.
            for (bool is_missing = true; is_missing;) {
                is_missing = false;
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i) {
                    const int v = begin + i * THREADS;
                    if (v >= vectors || exchange::are_there(x[i])) continue;
                    x[i] = exchange::read(from + 4 * v);
                    is_missing = true;
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int v = begin + i * THREADS;
                if (v < vectors) *reinterpret_cast<float4*>(states + v / ROW * PITCH + v % ROW * 4) = x[i];
            }
        }
    };

    for (int i = thread; i < TILE * PITCH; i += THREADS) {
        own_h[i] = 0.0f;
        if constexpr (STACKED) below_h[i] = 0.0f;
    }
    __syncthreads();

    for (int first = slice * TILE; first < BATCH; first += SLICES * TILE) {
        float h[OWN], c[OWN];
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int point = i * THREADS + thread, row = first + point / UNITS, unit = first_unit + point % UNITS;
            h[i] = c[i] = 0.0f;
            if (point >= POINTS || row >= BATCH || unit >= HIDDEN) continue;
            if (cell.h) h[i] = @WIDEN_H@;
            if (cell.c) c[i] = @WIDEN_C@;
        }
        for (int i = thread; i < TILE * HIDDEN; i += THREADS) {
            const int b = i / HIDDEN, row = first + b, unit = i % HIDDEN;
            own_h[b * PITCH + unit] = cell.h && row < BATCH ? @WIDEN_H@ : 0.0f;
        }
        // What a step is given is asked for a step before it is needed.
        float given[OWN][GATES], own[OWN][GATES], coming[OWN][GATES];
        const auto ask = [&](int walked) {
            const int step = direction ? STEPS - 1 - walked : walked;
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const int point = i * THREADS + thread, row = first + point / UNITS, unit = first_unit + point % UNITS;
#pragma unroll
                for (int g = 0; g < GATES; ++g) {
                    coming[i][g] = 0.0f;
                    if (walked >= STEPS || point >= POINTS || row >= BATCH || unit >= HIDDEN) continue;
                    const int at = g * HIDDEN + unit;
                    if (cell.given) coming[i][g] = @WIDEN_GIVEN@;
                    if (cell.below_bias) coming[i][g] = @WIDEN_BELOW_BIAS@;
                }
            }
        };
        ask(0);
        for (int walked = 0; walked < STEPS; ++walked) {
            const int step = direction ? STEPS - 1 - walked : walked;
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const int point = i * THREADS + thread, row = first + point / UNITS, unit = first_unit + point % UNITS;
#pragma unroll
                for (int g = 0; g < GATES; ++g) {
                    const int at = g * HIDDEN + unit;
                    const bool is_one = point < POINTS && row < BATCH && unit < HIDDEN;
                    given[i][g] = coming[i][g];
                    own[i][g] = is_one && cell.bias ? @WIDEN_BIAS@ : 0.0f;
                }
            }
            ask(walked + 1);
            clear();
@BELOW@
            if (!ALONE && walked > 0) take(which, direction ? step + 1 : step - 1, first, own_h);
            __syncthreads();
            multiply(own_weight, own_h);
            fold(own_sums);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const int point = i * THREADS + thread, b = point / UNITS, row = first + b;
                const int unit = first_unit + point % UNITS;
                if (point >= POINTS || row >= BATCH || unit >= HIDDEN) continue;
#pragma unroll
                for (int g = 0; g < GATES; ++g) {
                    const int at = b * ROWS + point % UNITS * GATES + g;
#pragma unroll
                    for (int w = 0; w < K_WARPS; ++w) {
                        own[i][g] += own_sums[w * TILE * ROWS + at];
                        if (APART && stacked) given[i][g] += below_sums[w * TILE * ROWS + at];
                    }
                }
@STEP@
                if (!ALONE || STACKED) exchange::give(place(which, step, row) + unit, h[i]);
                if (ALONE) own_h[b * PITCH + unit] = h[i];
                const float acc = h[i];
@STORE@
            }
        }
        __syncthreads();
    }
}
