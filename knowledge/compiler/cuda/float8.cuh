// ---------------------------------------------------------------- 8-bit floating point, as PyTorch converts

struct float8_e4m3fn { unsigned char bits; };   // neither infinity nor larger than 448: larger numbers become 448
struct float8_e5m2 { unsigned char bits; };     // the upper half of a float16
struct float8_e8m0fnu { unsigned char bits; };  // a power of two

DEVICE unsigned bits_of(float x) { return (unsigned)__float_as_int(x); }
DEVICE float float_of(unsigned bits) { return __int_as_float((int)bits); }

DEVICE float widen(float8_e4m3fn x) {
    const unsigned sign = (x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
    const unsigned normal = (magnitude << 20) + 0x3c000000u;
    const unsigned finite = magnitude < 8u ? bits_of(float_of(normal + 0x00800000u) - 0.015625f) : normal;
    return float_of(sign | (magnitude == 0x7fu ? 0x7fc00000u : finite));
}
DEVICE float widen(float8_e5m2 x) {
    const unsigned sign = (x.bits & 0x80u) << 24, magnitude = x.bits & 0x7fu;
    const unsigned normal = (magnitude << 21) + 0x38000000u;
    const unsigned finite = magnitude < 4u ? bits_of(float_of(normal + 0x00800000u) - 6.103515625e-05f) : normal;
    const unsigned large = magnitude > 0x7cu ? 0x7fc00000u : 0x7f800000u;
    return float_of(sign | (magnitude >= 0x7cu ? large : finite));
}
DEVICE float widen(float8_e8m0fnu x) {
    const unsigned finite = x.bits == 0 ? 0x00400000u : (unsigned)x.bits << 23;
    return float_of(x.bits == 0xffu ? 0x7fc00000u : finite);
}

DEVICE float8_e4m3fn narrow_float8_e4m3fn(float x) {  // round to nearest even
    const unsigned bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const unsigned normal = (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    const unsigned subnormal = bits_of(float_of(magnitude) + 16384.0f) - 0x46800000u;
    const unsigned finite = magnitude < 0x3c800000u ? subnormal : normal;
    const unsigned large = magnitude > 0x7f800000u ? 0x7fu : 0x7eu;
    return {(unsigned char)(((bits >> 24) & 0x80u) | (magnitude > 0x43e00000u ? large : finite))};
}
DEVICE float8_e5m2 narrow_float8_e5m2(float x) {  // round to nearest even
    const unsigned bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const unsigned normal = (magnitude - 0x38000000u + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21;
    const unsigned subnormal = bits_of(float_of(magnitude) + 128.0f) - 0x43000000u;
    const unsigned finite = magnitude < 0x38800000u ? subnormal : normal;
    const unsigned large = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;
    return {(unsigned char)(((bits >> 24) & 0x80u) | (magnitude >= 0x47800000u ? large : finite))};
}
DEVICE float8_e8m0fnu narrow_float8_e8m0fnu(float x) {  // the nearest; a tie goes up, but not to the least normal
    const unsigned magnitude = bits_of(x) & 0x7fffffffu, exponent = magnitude >> 23;
    const unsigned up = (magnitude & 0x7fffffu) + (exponent > 0u ? 1u : 0u) > 0x400000u ? 1u : 0u;
    return {(unsigned char)(exponent == 0xffu ? 0xffu : exponent + up)};
}
