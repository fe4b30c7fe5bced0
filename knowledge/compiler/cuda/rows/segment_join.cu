// What the @PARTS@ parts of each segment came to, combined in order.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@_join(@PARAMETERS@) {
    typedef @TYPE@ T;
    constexpr int V = @VECTOR@;
    const auto combine = [](T x, T y) { return @COMBINE@; };
    const long long task = (long long)blockIdx.x * @THREADS@ + threadIdx.x;
    const @INDEX@ segment = (@INDEX@)(task / @COLUMNS@), column = (@INDEX@)(task % @COLUMNS@);
    if (segment >= @SEGMENTS@) return;
    const int count = starts[segment + 1] - starts[segment];
@COLUMN@
    T found[V];
    for (int part = 0; part < @PARTS@; ++part)
        for (int j = 0; j < V; ++j) {
            const T own = parts[((long long)part * @SEGMENTS@ + segment) * (@COLUMNS@ * V) + column * V + j];
            found[j] = part ? combine(found[j], own) : own;
        }
@STORE@
}
