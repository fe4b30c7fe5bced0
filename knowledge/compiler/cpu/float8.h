// ---------------------------------------------------------------- 8-bit floating point, as PyTorch converts

struct float8_e4m3fn { uint8_t bits; };   // neither infinity nor larger than 448: larger numbers become 448
struct float8_e5m2 { uint8_t bits; };     // the upper half of a float16
struct float8_e8m0fnu { uint8_t bits; };  // a power of two

FOUNDRY_INLINE float widen(float8_e4m3fn x) {
  const uint32_t sign = (uint32_t)(x.bits & 0x80u) << 24, magnitude = (uint32_t)(x.bits & 0x7fu);
  const uint32_t normal = (magnitude << 20) + 0x3c000000u;
  const uint32_t subnormal = bits_of<uint32_t>(bits_of<float>(normal + 0x00800000u) - 0x1p-6f);
  const uint32_t finite = magnitude < 8u ? subnormal : normal;
  return bits_of<float>(sign | (magnitude == 0x7fu ? 0x7fc00000u : finite));
}
FOUNDRY_INLINE float widen(float8_e5m2 x) { return widen(float16{(uint16_t)(x.bits << 8)}); }
FOUNDRY_INLINE float widen(float8_e8m0fnu x) {
  const uint32_t finite = x.bits == 0 ? 0x00400000u : (uint32_t)x.bits << 23;
  return bits_of<float>(x.bits == 0xffu ? 0x7fc00000u : finite);
}

FOUNDRY_INLINE float8_e4m3fn narrow_float8_e4m3fn(float x) {  // round to nearest even
  const uint32_t bits = bits_of<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  const uint32_t subnormal = bits_of<uint32_t>(bits_of<float>(magnitude) + 0x1p14f) - bits_of<uint32_t>(0x1p14f);
  const uint32_t finite = magnitude < 0x3c800000u ? subnormal : normal;
  const uint32_t large = magnitude > 0x7f800000u ? 0x7fu : 0x7eu;
  return {(uint8_t)(((bits >> 24) & 0x80u) | (magnitude > 0x43e00000u ? large : finite))};
}
FOUNDRY_INLINE float8_e5m2 narrow_float8_e5m2(float x) {  // round to nearest even
  const uint32_t bits = bits_of<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21;
  const uint32_t subnormal = bits_of<uint32_t>(bits_of<float>(magnitude) + 0x1p7f) - bits_of<uint32_t>(0x1p7f);
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t large = magnitude > 0x7f800000u ? 0x7fu : 0x7cu;
  return {(uint8_t)(((bits >> 24) & 0x80u) | (magnitude >= 0x47800000u ? large : finite))};
}
FOUNDRY_INLINE float8_e8m0fnu narrow_float8_e8m0fnu(float x) {  // the nearest; a tie goes up, but not to the least normal
  const uint32_t magnitude = bits_of<uint32_t>(x) & 0x7fffffffu, exponent = magnitude >> 23;
  const uint32_t up = (magnitude & 0x7fffffu) + (exponent > 0u ? 1u : 0u) > 0x400000u ? 1u : 0u;
  return {(uint8_t)(exponent == 0xffu ? 0xffu : exponent + up)};
}
