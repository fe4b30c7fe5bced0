// @OP@ pooling in two steps: each lane reduces a vector of input columns over the window's other dimensions, which reads
// the input in order, and puts it into shared memory, where the window's last dimension is then taken. @TEAMS@ teams of
// lanes a block, each with a row of outputs at a time.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    constexpr int LANES = @LANES@, TEAMS = @TEAMS@, V = @VECTOR@, TAPS = @TAPS@, BATCH = @BATCH@, WIDTH = @WIDTH@;
    const auto combine = [](T x, T y) { return @COMBINE@; };
    __shared__ __align__(16) T columns[2][TEAMS][WIDTH];
    const int lane = threadIdx.x % LANES, team = threadIdx.x / LANES;
    const int part = (int)(blockIdx.x % @PARTS@);
    const int begin_out = part * @OUTPUTS@;
    const int begin_in = @BEGIN_IN@;
#pragma unroll 1
    for (int step = 0; step < @STEPS@; ++step) {
        const int place = (int)(blockIdx.x / @PARTS@) * (@STEPS@ * TEAMS) + step * TEAMS + team;
        const bool active = place < @ROWS@;
        const int row = active ? place : @ROWS@ - 1;
@ROW@
        T* const line = columns[step & 1][team];
        for (int at = lane * V; at < WIDTH; at += LANES * V) {
            const int column = begin_in + at;
            Vec<T, V> sum;
#pragma unroll
            for (int j = 0; j < V; ++j) sum.at[j] = @IDENTITY@;
            if (column >= 0 && column < @SIZE@) {
#pragma unroll
                for (int first = 0; first < TAPS; first += BATCH) {
@DECLARE@
#pragma unroll
                    for (int u = 0; u < BATCH; ++u) {
@TAP@
@LOAD@
                    }
#pragma unroll
                    for (int u = 0; u < BATCH; ++u) {
@TAP@
@VALUE@
                    }
                }
            }
            store_vec<V>(line + at, sum);
        }
        @BARRIER@
        for (int next = lane; next < @OUTPUTS@; next += LANES) {
            const @INDEX@ @LAST@ = begin_out + next;
            if (active && @LAST@ < @OUT@) {
                T best = @IDENTITY@;
#pragma unroll @UNROLL@
                for (int t = 0; t < @WINDOW@; ++t)
                    best = combine(best, line[next * @STRIDE@ + @SHIFT@ + t * @DILATION@]);
@STORE@
            }
        }
    }
}
