// Every thread keeps @CHANNELS@ output channels x @ROWS@ rows x @OUTPUTS@ neighbours along the width in registers and walks the
// input that reaches them: a line of the input is loaded once, in pieces of @WIDE@, for all taps and rows that it lies under.
extern "C" __global__ void __launch_bounds__(@THREADS@, @MIN_BLOCKS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    constexpr int CHANNELS = @CHANNELS@, ROWS = @ROWS@, OUTPUTS = @OUTPUTS@, WIDE = @WIDE@;
    constexpr int PIECES = @PIECES@, LINES = @LINES@, TAPS_D = @TAPS_D@, TAPS_H = @TAPS_H@, TAPS_W = @TAPS_W@;
    // Counted from the thread's first input: where each piece and each line begins.
    constexpr int PIECE[PIECES] = @PIECE@;
    static constexpr int LINE[LINES] = @LINE@;
    // Which element of the pieces a tap multiplies for an output, and through which tap a line reaches a row; -1: none.
    constexpr int ELEMENT[TAPS_W][OUTPUTS] = @ELEMENT@;
    static constexpr int TAP[LINES][ROWS] = @TAP@;
    static constexpr int UNDER[TAPS_H][ROWS] = @UNDER@;  // which line lies under a tap and a row; -1: none
    constexpr bool TOGETHER = @TOGETHER@;  // all lines are read first, so that a weight is for all rows
    constexpr bool KEEP = @KEEP@;  // few weights stay in registers over all lines
    constexpr bool STAGED = @STAGED@;  // a block's weights stay in shared memory, those of its channels side by side
    constexpr int TAPS = TAPS_D * TAPS_H * TAPS_W, WIDTH = CHANNELS % 4 == 0 ? 4 : CHANNELS % 2 == 0 ? 2 : 1;
    __shared__ __align__(16) T staged[STAGED ? @IN_CHANNELS@ * TAPS * CHANNELS : 1];

    const int column = (int)(@BLOCK@ % @TILES_W@ * @BLOCK_W@ + threadIdx.x);
    const int row = (int)(@BLOCK@ / @TILES_W@ % @TILES_H@ * @BLOCK_H@ + threadIdx.y);
    const int plane = (int)(@BLOCK@ / @TILES@ * @BLOCK_PLANES@ + threadIdx.z);
    // A plane is one depth of one set of channels of one image; where weights are staged, a block has one set.
    const int p0 = plane % @OUT_D@, set = @SET@;
    const @IMAGE@ image = plane / @PLANES_IMAGE@;
    const int first_channel = set * CHANNELS, group = first_channel / @GROUP_CHANNELS@;
    const int first_y = row * @ADVANCE_H@, first_x = column * @ADVANCE_W@;
    const @X_TYPE@* const input = @ORIGIN@;
    const @W_TYPE@* const weights = b_@WEIGHT@ + @FIRST_WEIGHT@;
    if constexpr (STAGED) {
        const int thread = (threadIdx.z * @BLOCK_H@ + threadIdx.y) * @BLOCK_W@ + threadIdx.x;
        for (int e = thread; e < @IN_CHANNELS@ * TAPS * CHANNELS; e += @THREADS@) {
            const int i = e % CHANNELS, tap = e / CHANNELS % TAPS, c = e / (CHANNELS * TAPS);
            staged[e] = @W_SOURCE@;
        }
        __syncthreads();
    }
    if (column >= @COLUMNS@ || row >= @ROW_BLOCKS@ || plane >= @PLANES@) return;

    T acc[CHANNELS][ROWS][OUTPUTS] = {};
#pragma unroll 1
    for (int c = 0; c < @IN_CHANNELS@; ++c) {
#pragma unroll 1
        for (int td = 0; td < TAPS_D; ++td) {
@DEPTH@
            const @X_TYPE@* const plane_input = input + (@INSIDE@)c * @X_CHANNEL@ + (@INSIDE@)depth * @X_DEPTH@;
            const T* const near = staged + (STAGED ? (c * TAPS_D + td) * (TAPS_H * TAPS_W * CHANNELS) : 0);
            const @W_TYPE@* const kernel = weights + c * @WEIGHT_IN@ + td * (TAPS_H * TAPS_W);
            T kept[KEEP ? CHANNELS : 1][KEEP ? TAPS_H * TAPS_W : 1];
#pragma unroll
            for (int i = 0; KEEP && i < CHANNELS; ++i)
#pragma unroll
                for (int tap = 0; tap < TAPS_H * TAPS_W; ++tap) kept[i][tap] = @W_VALUE@;
            const auto read = [&](int line, T (&window)[PIECES * WIDE]) {  // zeros where nothing is
                const int y = first_y + LINE[line];
                const bool exists = (unsigned)y < @IN_H@u;
#pragma unroll
                for (int piece = 0; piece < PIECES; ++piece) {
                    const int x = first_x + PIECE[piece];
                    Vec<@X_TYPE@, WIDE> loaded;
                    const bool inside = exists && (unsigned)x < @IN_W@u;
                    if (inside) loaded = load_vec<WIDE>(plane_input + (@INSIDE@)y * @X_ROW@ + (@INSIDE@)x * @X_COLUMN@);
#pragma unroll
                    for (int e = 0; e < WIDE; ++e) window[piece * WIDE + e] = inside ? @X_VALUE@ : (T)0;
                }
            };
            const auto beside = [&](int tap, T (&side)[STAGED ? CHANNELS : 1]) {  // a tap's weights in shared memory
#pragma unroll
                for (int i = 0; STAGED && i < CHANNELS; i += WIDTH) {
                    const Vec<T, WIDTH> some = load_vec<WIDTH>(near + (STAGED ? tap * CHANNELS + i : 0));
#pragma unroll
                    for (int e = 0; e < WIDTH; ++e) side[STAGED ? i + e : 0] = some.at[e];
                }
            };
            if constexpr (TOGETHER) {
                T window[LINES][PIECES * WIDE];
#pragma unroll
                for (int line = 0; line < LINES; ++line) read(line, window[line]);
#pragma unroll
                for (int tap = 0; tap < TAPS_H * TAPS_W; ++tap) {
                    T side[STAGED ? CHANNELS : 1];
                    beside(tap, side);
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        const int line = UNDER[tap / TAPS_W][r];
                        if (line < 0) continue;
#pragma unroll
                        for (int i = 0; i < CHANNELS; ++i)
#pragma unroll
                            for (int o = 0; o < OUTPUTS; ++o)
                                if (ELEMENT[tap % TAPS_W][o] >= 0)
                                    acc[i][r][o] += side[STAGED ? i : 0] * window[line][ELEMENT[tap % TAPS_W][o]];
                    }
                }
                continue;
            }
#pragma unroll @UNROLL@
            for (int line = 0; line < LINES; ++line) {
                if ((unsigned)(first_y + LINE[line]) >= @IN_H@u) continue;
                T window[PIECES * WIDE];
                read(line, window);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const int th = TAP[line][r];
                    if (th < 0) continue;
#pragma unroll
                    for (int tw = 0; tw < TAPS_W; ++tw) {
                        const int tap = th * TAPS_W + tw;
                        T side[STAGED ? CHANNELS : 1];
                        beside(tap, side);
#pragma unroll
                        for (int i = 0; i < CHANNELS; ++i) {
                            const T weight =
                                STAGED ? side[STAGED ? i : 0] : KEEP ? kept[KEEP ? i : 0][KEEP ? tap : 0] : @W_VALUE@;
#pragma unroll
                            for (int o = 0; o < OUTPUTS; ++o)
                                if (ELEMENT[tw][o] >= 0) acc[i][r][o] += weight * window[ELEMENT[tw][o]];
                        }
                    }
                }
            }
        }
    }

#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) {
        const int channel = first_channel + i;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int p1 = row * ROWS + r;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o += @STORE@) {
                const int p2 = column * OUTPUTS + o;
                if (@EXISTS@) {
@EPILOGUE@
                }
            }
        }
    }
}
