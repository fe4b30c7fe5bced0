// Operands on their way into tiles for wgmma: rows of the result's axis, 128 bytes of k each, one tile after the other
// along k. Float32 becomes TF32, or 16 bits times a power of two that brings the row's largest finite element to 2^13.
namespace pack {

// Where 16-byte piece `piece` (counted along the whole row) of row `out` lies in an operand of TILE rows a tile.
template <int TILE, int STEPS> DEVICE unsigned char* place(unsigned char* packed, long long row, int piece) {
    const long long tile = row / TILE;
    const int out = (int)(row % TILE);
    return packed + ((tile * STEPS + piece / 8) * TILE + out) * 128 + ((piece % 8) ^ (out % 8)) * 16;
}
// The same for an element of 16 bits where rows lie across k, in boxes of 64 of them by 64 of k.
template <int TILE, int STEPS> DEVICE unsigned char* place_across(unsigned char* packed, long long row, long long k) {
    const long long tile = row / TILE, step = k / 64;
    const int out = (int)(row % TILE), deep = (int)(k % 64);
    const int byte = (out % 64 / 8 ^ deep % 8) * 16 + out % 8 * 2;
    return packed + ((tile * STEPS + step) * TILE + out / 64 * 64 + deep) * 128 + byte;
}
DEVICE float finite(float x) { return math::isnan(x) || math::isinf(x) ? 0.0f : math::abs(x); }

// The exponent that takes `largest` (finite, not negative) into [2^13, 2^14); a row of tiny numbers stays below that.
DEVICE int exponent_for(float largest) {
    const int field = __float_as_int(largest) >> 23;
    return 127 + 13 - (field < 14 ? 14 : field);
}
DEVICE float power(int exponent) { return __int_as_float((exponent + 127) << 23); }  // of two, -126 <= exponent <= 127
// Whether numbers of at most `largest` times 2^GUESS keep their significant bits in 16 bits, and do not overflow.
template <int GUESS> DEVICE bool suits(float largest) {
    return largest == 0.0f || (largest >= power(2 - GUESS) && largest < power(15 - GUESS));
}
// x with its last bits cut off, so that what is left (`rest`) has the same sign: together they meet an infinity as x does.
template <class P> DEVICE typename P::Element cut(float x) {
    const typename P::Element near = P::pack(x);
    return math::abs(P::value(near)) > math::abs(x) ? (typename P::Element)(near - P::UNIT) : near;
}
// What of x an element of precision P does not hold; an infinity or NaN is held whole.
template <class P> DEVICE float rest(float x, typename P::Element held) {
    const float left = x - P::value(held);
    return left - left == 0.0f ? left : 0.0f;
}
// Whether the sum of two such exponents is that of one power of two, and this power.
DEVICE bool is_plain(int exponent) { return exponent >= -63 && exponent <= 63; }
DEVICE float power_of(int one, int other) {
    return __int_as_float((int)(((unsigned)(one + 127) << 23) + ((unsigned)other << 23)));
}
// x 2^exponent for exponents of two factors together: where one power does not hold them in halves, which neither overflow
// nor vanish by themselves.
DEVICE float scaled(float x, int exponent) {
    if ((unsigned)(exponent + 126) <= 253u) return x * power(exponent);
    const int half = exponent / 2;
    return x * power(half) * power(exponent - half);
}
// 2^exponent in two factors: sums of products of numbers below 2^14 stay what they are times the first.
struct Scale { float near, far; };
DEVICE Scale scale_of(int exponent) {
    const int near = exponent < -64 ? -64 : exponent > 64 ? 64 : exponent;
    return {power(near), power(exponent - near)};
}
// x times both powers of two, of which none overflows or vanishes before the last product, without a branch.
DEVICE float scaled(float x, const Scale& row, float column) { return x * row.near * column * row.far; }

}  // namespace pack
