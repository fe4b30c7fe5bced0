// Runtime of Foundry's CPU kernels: element types and mathematics that vectorise inside plain `#pragma omp simd` loops.
//
// Every function here is branch-free, so that GCC turns a call into straight vector code. Polynomials are minimax fits
// (weighted least squares with Lawson's reweighting) for float32; float64 falls back to libm except for exp and log.
// NaN and infinities behave as in PyTorch. Needs -fno-math-errno -fno-trapping-math; must not see -ffast-math.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <omp.h>
#include <sys/mman.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors wider than the machine's are passed between inlined functions only
#endif

#define FOUNDRY_INLINE static inline __attribute__((always_inline))
#define FOUNDRY_INLINE_MEMBER inline __attribute__((always_inline))

template <class To, class From>
FOUNDRY_INLINE To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

// ---------------------------------------------------------------- 16-bit floating point: stored narrow, computed in float

struct float16 { uint16_t bits; };
struct bfloat16 { uint16_t bits; };
FOUNDRY_INLINE float widen(bfloat16 x) { return bits_of<float>((uint32_t)x.bits << 16); }

FOUNDRY_INLINE float widen(float16 x) {
  const uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, magnitude = (uint32_t)(x.bits & 0x7fffu) << 13;
  const uint32_t scaled = bits_of<uint32_t>(bits_of<float>(magnitude) * 0x1p112f);  // rebias; subnormals come right
  const uint32_t exponent = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;            // infinity and NaN
  return bits_of<float>(sign | scaled | exponent);
}

FOUNDRY_INLINE bfloat16 narrow_bfloat16(float x) {  // round to nearest even
  const uint32_t bits = bits_of<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {(uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
}

FOUNDRY_INLINE float16 narrow_float16(float x) {  // round to nearest even
  const uint32_t bits = bits_of<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t subnormal = bits_of<uint32_t>(bits_of<float>(magnitude) + 0.5f) - bits_of<uint32_t>(0.5f);
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return {(uint16_t)(((bits >> 16) & 0x8000u) | (magnitude >= 0x477ff000u ? large : finite))};
}

// ---------------------------------------------------------------- mathematics

namespace math {

template <class T> using if_floating = std::enable_if_t<std::is_floating_point_v<T>, int>;
template <class T> using if_integer = std::enable_if_t<std::is_integral_v<T>, int>;

// Arguments are evaluated before the choice, so that GCC blends instead of branching.
template <class T> FOUNDRY_INLINE T where(bool condition, T yes, T no) { return condition ? yes : no; }

// One of two by the bits of a mask: a chain of choices by `?:` becomes a choice between conditions, which GCC leaves scalar.
template <class T>
FOUNDRY_INLINE T chosen(bool first, T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    const uint32_t mask = 0u - (uint32_t)first;
    return bits_of<float>((bits_of<uint32_t>(a) & mask) | (bits_of<uint32_t>(b) & ~mask));
  }
  else return first ? a : b;
}
template <class A, class B>
FOUNDRY_INLINE auto maximum(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return chosen<T>((a > b) | (a != a), a, b);  // NaN wins on either side
  else return (T)(a > b ? a : b);
}
template <class A, class B>
FOUNDRY_INLINE auto minimum(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return chosen<T>((a < b) | (a != a), a, b);
  else return (T)(a < b ? a : b);
}
template <class T>
FOUNDRY_INLINE T clamp(T x, T low, T high) {  // bounds are numbers; NaN in x passes through both selections
  const T raised = x < low ? low : x;
  return raised > high ? high : raised;
}
template <class T> FOUNDRY_INLINE T relu(T x) { return x < (T)0 ? (T)0 : x; }
template <class T> FOUNDRY_INLINE T square(T x) { return (T)(x * x); }
FOUNDRY_INLINE float abs(float x) { return __builtin_fabsf(x); }
FOUNDRY_INLINE double abs(double x) { return __builtin_fabs(x); }
template <class T, if_integer<T> = 0> FOUNDRY_INLINE T abs(T x) { return (T)(x < 0 ? -x : x); }
template <class T> FOUNDRY_INLINE T sign(T x) { return (T)((x > (T)0) - (x < (T)0)); }
template <class T> FOUNDRY_INLINE bool isnan(T x) { return x != x; }
template <class T>
FOUNDRY_INLINE bool isinf(T x) {
  if constexpr (std::is_floating_point_v<T>) return math::abs(x) == std::numeric_limits<T>::infinity();
  else return false;
}

FOUNDRY_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
FOUNDRY_INLINE double sqrt(double x) { return __builtin_sqrt(x); }
template <class T> FOUNDRY_INLINE T rsqrt(T x) { return (T)1 / math::sqrt(x); }
FOUNDRY_INLINE float floor(float x) { return __builtin_floorf(x); }
FOUNDRY_INLINE double floor(double x) { return __builtin_floor(x); }
FOUNDRY_INLINE float ceil(float x) { return __builtin_ceilf(x); }
FOUNDRY_INLINE double ceil(double x) { return __builtin_ceil(x); }
FOUNDRY_INLINE float trunc(float x) { return __builtin_truncf(x); }
FOUNDRY_INLINE double trunc(double x) { return __builtin_trunc(x); }
FOUNDRY_INLINE float round(float x) { return __builtin_nearbyintf(x); }  // half to even
FOUNDRY_INLINE double round(double x) { return __builtin_nearbyint(x); }
template <class T, if_integer<T> = 0> FOUNDRY_INLINE T floor(T x) { return x; }
template <class T, if_integer<T> = 0> FOUNDRY_INLINE T ceil(T x) { return x; }
template <class T, if_integer<T> = 0> FOUNDRY_INLINE T trunc(T x) { return x; }
template <class T, if_integer<T> = 0> FOUNDRY_INLINE T round(T x) { return x; }
template <class T> FOUNDRY_INLINE T frac(T x) { return x - math::trunc(x); }

// A float in the upper half of an integer that is ordered as it is: zeros of both signs alike, NaN above all.
FOUNDRY_INLINE int64_t order_key(float x) {
  const int32_t bits = x != x ? 0x7fffffff : x == 0.0f ? 0 : bits_of<int32_t>(x);
  return (int64_t)(bits < 0 ? bits ^ 0x7fffffff : bits) * (1LL << 32);
}
FOUNDRY_INLINE float of_order_key(int64_t key) {
  const int32_t bits = (int32_t)(key >> 32);
  return bits_of<float>(bits < 0 ? bits ^ 0x7fffffff : bits);
}

// 2^n for the integer n held in the low bits of `shifted` = n + 1.5 * 2^23 (the rounding trick's sum).
FOUNDRY_INLINE float power_of_two(int32_t n) { return bits_of<float>((n + 127) << 23); }

struct ExpReduced { int32_t n; float expm1; };  // exp(x) = 2^n * (1 + expm1), |expm1| < 0.42

FOUNDRY_INLINE ExpReduced reduce_exp(float x) {
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693147182f) - n * -1.90465421e-9f;  // fused: exact up to the last bit
  float q = 1.395171741e-3f;
  q = q * r + 8.369598538e-3f;
  q = q * r + 4.166618735e-2f;
  q = q * r + 1.666651219e-1f;
  q = q * r + 0.5f;
  return {bits_of<int32_t>(shifted) - 0x4b400000, (r * r) * q + r};
}

FOUNDRY_INLINE float exp(float x) {
  const float bounded = clamp(x, -104.0f, 89.0f);
  const ExpReduced e = reduce_exp(bounded);
  const int32_t half = e.n >> 1;  // two factors reach the subnormals and infinity
  return (e.expm1 + 1.0f) * power_of_two(half) * power_of_two(e.n - half);
}

FOUNDRY_INLINE float exp2(float x) {
  const float bounded = clamp(x, -151.0f, 129.0f);
  const float shifted = bounded + 12582912.0f;
  const float r = (bounded - (shifted - 12582912.0f)) * 0.693147182f;
  float q = 1.395171741e-3f;
  q = q * r + 8.369598538e-3f;
  q = q * r + 4.166618735e-2f;
  q = q * r + 1.666651219e-1f;
  q = q * r + 0.5f;
  const int32_t n = bits_of<int32_t>(shifted) - 0x4b400000, half = n >> 1;
  return ((r * r) * q + r + 1.0f) * power_of_two(half) * power_of_two(n - half);
}

FOUNDRY_INLINE float expm1(float x) {
  const float bounded = clamp(x, -30.0f, 89.0f);
  const ExpReduced e = reduce_exp(bounded);
  const float scale = power_of_two(e.n - 1);
  return 2.0f * (scale * e.expm1 + (scale - 0.5f));
}

// log(2^exponent * (1 + f)) for 1 + f in [sqrt(1/2), sqrt(2)).
FOUNDRY_INLINE float log_of_parts(float f, float exponent) {
  float p = 6.757530570e-2f;
  p = p * f - 1.169432476e-1f;
  p = p * f + 1.189352497e-1f;
  p = p * f - 1.240308657e-1f;
  p = p * f + 1.421855241e-1f;
  p = p * f - 1.666809022e-1f;
  p = p * f + 2.000216693e-1f;
  p = p * f - 2.500000894e-1f;
  p = p * f + 3.333331048e-1f;
  const float square = f * f;
  const float tail = (p * f) * square + exponent * -2.12194440e-4f;
  return (f + (tail - 0.5f * square)) + exponent * 0.693359375f;
}

struct LogReduced { float f, exponent; };
FOUNDRY_INLINE LogReduced reduce_log(float x) {  // x is 2^exponent * (1 + f)
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = subnormal ? x * 0x1p23f : x;
  const int32_t bits = bits_of<int32_t>(scaled), steps = (bits - 0x3f3504f3) >> 23;  // 0x3f3504f3 is sqrt(1/2)
  return {bits_of<float>(bits - (steps << 23)) - 1.0f, (float)(subnormal ? steps - 23 : steps)};
}
FOUNDRY_INLINE float limit_log(float x, float finite) {
  const float limited = x == INFINITY ? x : finite;
  return x > 0.0f ? limited : (x == 0.0f ? -INFINITY : NAN);
}
FOUNDRY_INLINE float log(float x) {
  const LogReduced parts = reduce_log(x);
  return limit_log(x, log_of_parts(parts.f, parts.exponent));
}
// Exact for powers of the base: scales of blocks are powers of two by floor(log2(x)).
FOUNDRY_INLINE float log2(float x) {
  const LogReduced parts = reduce_log(x);
  return limit_log(x, parts.exponent + log_of_parts(parts.f, 0.0f) * 1.44269504f);
}
FOUNDRY_INLINE float log10(float x) {  // 0.30102539 has few bits: its multiple is exact
  const LogReduced parts = reduce_log(x);
  const float rest = parts.exponent * 4.60503881e-6f + log_of_parts(parts.f, 0.0f) * 0.434294482f;
  return limit_log(x, parts.exponent * 0.301025391f + rest);
}

FOUNDRY_INLINE float log1p(float x) {
  const float u = 1.0f + x;
  const float lost = x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);  // what rounding 1 + x dropped
  const int32_t bits = bits_of<int32_t>(u), steps = (bits - 0x3f3504f3) >> 23;
  const float mantissa = bits_of<float>(bits - (steps << 23));
  const float unit = power_of_two(-(steps < 127 ? steps : 127));
  const float finite = log_of_parts((mantissa - 1.0f) + lost * unit, (float)steps);
  const float limited = x == INFINITY ? x : finite;
  return x > -1.0f ? limited : (x == -1.0f ? -INFINITY : NAN);
}

FOUNDRY_INLINE float sigmoid(float x) { return 1.0f / (1.0f + math::exp(-x)); }
FOUNDRY_INLINE float silu(float x) { return x / (1.0f + math::exp(-x)); }

FOUNDRY_INLINE float tanh(float x) {
  const float u = x * x;
  float p = -6.207422819e-3f;
  p = p * u + 2.102721296e-02f;
  p = p * u - 5.384227633e-02f;
  p = p * u + 1.333249956e-01f;
  p = p * u - 3.333331645e-01f;
  const ExpReduced e = reduce_exp(2.0f * clamp(math::abs(x), 0.0f, 10.0f));
  const float large = 1.0f - 2.0f / ((e.expm1 + 1.0f) * power_of_two(e.n) + 1.0f);
  return math::abs(x) < 0.55f ? p * (u * x) + x : __builtin_copysignf(large, x);
}

FOUNDRY_INLINE float erf(float x) {
  const float t = math::abs(x), u = x * x;
  float p = 8.349600830e-5f;  // erf(x) / x - 1 in x^2, for |x| < 0.92
  p = p * u - 8.137851837e-4f;
  p = p * u + 5.200604443e-3f;
  p = p * u - 2.685922571e-2f;
  p = p * u + 1.128369272e-1f;
  p = p * u - 3.761263490e-1f;
  p = p * u + 1.283791672e-1f;
  const float bounded = clamp(t, 0.9f, 4.0f);
  float g = -1.982207032e-4f;  // -log(erfc(t)) on 0.9..4
  g = g * bounded + 3.065499710e-3f;
  g = g * bounded - 2.231524885e-2f;
  g = g * bounded + 1.041137427e-1f;
  g = g * bounded + 6.369760036e-1f;
  g = g * bounded + 1.127797246e+0f;
  g = g * bounded + 1.664390875e-4f;
  const ExpReduced e = reduce_exp(-g);
  const float large = 1.0f - (e.expm1 + 1.0f) * power_of_two(e.n);
  return t < 0.92f ? p * x + x : __builtin_copysignf(large, x);
}

FOUNDRY_INLINE float gelu(float x) { return 0.5f * x * (1.0f + math::erf(x * 0.707106781f)); }

// Reduction modulo pi/2 in float64, good to |x| of about 1e15.
struct TrigReduced { int32_t quadrant; double r; };
FOUNDRY_INLINE TrigReduced reduce_trig(float x) {
  const double wide = x;
  const double shifted = wide * 0.63661977236758138 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = (wide - n * 1.5707963267948966) - n * 6.123233995736766e-17;
  return {(int32_t)bits_of<int64_t>(shifted), clamp(r, -0.8, 0.8)};
}
template <class T>
FOUNDRY_INLINE T sin_poly(T r) {
  const T u = r * r;
  T p = 2.717939878e-6f;
  p = p * u - 1.983929542e-4f;
  p = p * u + 8.333329111e-3f;
  p = p * u - 1.666666716e-1f;
  return p * (u * r) + r;
}
template <class T>
FOUNDRY_INLINE T cos_poly(T r) {
  const T u = r * r;
  T p = -2.720678651e-7f;
  p = p * u + 2.479947943e-5f;
  p = p * u - 1.388888340e-3f;
  p = p * u + 4.166666791e-2f;
  return (p * u - (T)0.5) * u + (T)1;
}
FOUNDRY_INLINE float sin(float x) {
  const TrigReduced t = reduce_trig(x);
  const float value = (t.quadrant & 1) ? cos_poly((float)t.r) : sin_poly((float)t.r);
  return (t.quadrant & 2) ? -value : value;
}
FOUNDRY_INLINE float cos(float x) {
  const TrigReduced t = reduce_trig(x);
  const float value = (t.quadrant & 1) ? sin_poly((float)t.r) : cos_poly((float)t.r);
  return ((t.quadrant + 1) & 2) ? -value : value;
}
FOUNDRY_INLINE float tan(float x) {
  const TrigReduced t = reduce_trig(x);
  const double sine = sin_poly(t.r), cosine = cos_poly(t.r);  // in float64: near a pole every bit counts
  const bool odd = t.quadrant & 1;
  return (float)((odd ? -cosine : sine) / (odd ? sine : cosine));
}
FOUNDRY_INLINE float half_exp(float x) {  // exp(|x|) / 2
  const ExpReduced e = reduce_exp(clamp(math::abs(x), 0.0f, 89.4f));
  return (e.expm1 + 1.0f) * power_of_two(e.n - 1);
}
FOUNDRY_INLINE float sinh(float x) {
  const float t = math::expm1(math::abs(x));
  const float small = 0.5f * (t + t / (t + 1.0f)), half = half_exp(x);
  return __builtin_copysignf(t > 1.0f ? half - 0.25f / half : small, x);
}
FOUNDRY_INLINE float cosh(float x) {
  const float half = half_exp(x);
  return half + 0.25f / half;
}

// ---- float64

FOUNDRY_INLINE double exp(double x) {
  const double bounded = clamp(x, -746.0, 710.0);
  const double shifted = bounded * 1.4426950408889634 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = (bounded - n * 0.69314718055994531) - n * 2.3190468138462996e-17;
  double q = 1.0 / 6227020800.0;  // Taylor to r^13: the remainder is below 5e-18
  q = q * r + 1.0 / 479001600.0;
  q = q * r + 1.0 / 39916800.0;
  q = q * r + 1.0 / 3628800.0;
  q = q * r + 1.0 / 362880.0;
  q = q * r + 1.0 / 40320.0;
  q = q * r + 1.0 / 5040.0;
  q = q * r + 1.0 / 720.0;
  q = q * r + 1.0 / 120.0;
  q = q * r + 1.0 / 24.0;
  q = q * r + 1.0 / 6.0;
  q = q * r + 0.5;
  const int64_t count = bits_of<int64_t>(shifted) - 0x4338000000000000, half = count >> 1;
  const double first = bits_of<double>((half + 1023) << 52), second = bits_of<double>((count - half + 1023) << 52);
  return ((r * r) * q + r + 1.0) * first * second;
}

FOUNDRY_INLINE double log(double x) {
  const bool subnormal = x < 2.2250738585072014e-308;
  const double scaled = subnormal ? x * 0x1p54 : x;
  const int64_t bits = bits_of<int64_t>(scaled), steps = (bits - 0x3fe6a09e667f3bcd) >> 52;
  const double f = bits_of<double>(bits - (int64_t)((uint64_t)steps << 52)) - 1.0;
  const double exponent = (double)(subnormal ? steps - 54 : steps);
  const double s = f / (2.0 + f), z = s * s;  // log(1 + f) = 2 atanh(s)
  double p = 2.0 / 21.0;
  p = p * z + 2.0 / 19.0;
  p = p * z + 2.0 / 17.0;
  p = p * z + 2.0 / 15.0;
  p = p * z + 2.0 / 13.0;
  p = p * z + 2.0 / 11.0;
  p = p * z + 2.0 / 9.0;
  p = p * z + 2.0 / 7.0;
  p = p * z + 2.0 / 5.0;
  p = p * z + 2.0 / 3.0;
  const double square = 0.5 * f * f;
  const double finite = exponent * 0.693147180369123816 + (f - (square - (s * (square + z * p) + exponent * 1.9082149292705877e-10)));
  const double limited = x == INFINITY ? x : finite;
  return x > 0.0 ? limited : (x == 0.0 ? -INFINITY : (double)NAN);
}
FOUNDRY_INLINE double exp2(double x) { return __builtin_exp2(x); }
FOUNDRY_INLINE double expm1(double x) { return __builtin_expm1(x); }
FOUNDRY_INLINE double log1p(double x) { return __builtin_log1p(x); }
FOUNDRY_INLINE double log2(double x) { return __builtin_log2(x); }
FOUNDRY_INLINE double log10(double x) { return __builtin_log10(x); }
FOUNDRY_INLINE double tanh(double x) { return __builtin_tanh(x); }
FOUNDRY_INLINE double erf(double x) { return __builtin_erf(x); }
FOUNDRY_INLINE double sin(double x) { return __builtin_sin(x); }
FOUNDRY_INLINE double cos(double x) { return __builtin_cos(x); }
FOUNDRY_INLINE double tan(double x) { return __builtin_tan(x); }
FOUNDRY_INLINE double sinh(double x) { return __builtin_sinh(x); }
FOUNDRY_INLINE double cosh(double x) { return __builtin_cosh(x); }
FOUNDRY_INLINE double sigmoid(double x) { return 1.0 / (1.0 + math::exp(-x)); }
FOUNDRY_INLINE double silu(double x) { return x / (1.0 + math::exp(-x)); }
FOUNDRY_INLINE double gelu(double x) { return 0.5 * x * (1.0 + math::erf(x * 0.70710678118654752)); }

// ---- in terms of the above, either width

template <class T> FOUNDRY_INLINE T asin(T x) { return std::asin(x); }
template <class T> FOUNDRY_INLINE T acos(T x) { return std::acos(x); }
template <class T> FOUNDRY_INLINE T atan(T x) { return std::atan(x); }
template <class T> FOUNDRY_INLINE T atan2(T y, T x) { return std::atan2(y, x); }
FOUNDRY_INLINE double hypot(double x, double y) { return std::hypot(x, y); }
FOUNDRY_INLINE float hypot(float x, float y) {  // squares of floats neither overflow nor vanish in double precision
  const float length = (float)__builtin_sqrt((double)x * x + (double)y * y);
  return math::isinf(x) | math::isinf(y) ? INFINITY : length;
}

template <class T> FOUNDRY_INLINE T erfc(T x) { return std::erfc(x); }
template <class T> FOUNDRY_INLINE T lgamma(T x) { return std::lgamma(x); }
template <class T> FOUNDRY_INLINE T asinh(T x) { return std::asinh(x); }
template <class T> FOUNDRY_INLINE T acosh(T x) { return std::acosh(x); }
template <class T> FOUNDRY_INLINE T atanh(T x) { return std::atanh(x); }
template <class T> FOUNDRY_INLINE T copysign(T x, T y) { return std::copysign(x, y); }
template <class T> FOUNDRY_INLINE T nextafter(T x, T y) { return std::nextafter(x, y); }

template <class T>
FOUNDRY_INLINE T gelu_tanh(T x) {  // (1 + tanh(u)) / 2 is the sigmoid of 2 u, without cancellation
  return x * math::sigmoid((T)1.59576912160573071 * (x + (T)0.044715 * x * x * x));
}
template <class T> FOUNDRY_INLINE T softplus(T x) { return x > (T)20 ? x : math::log1p(math::exp(x)); }
template <class T>
FOUNDRY_INLINE T logsigmoid(T x) { return (x < (T)0 ? x : (T)0) - math::log1p(math::exp(-math::abs(x))); }
template <class T>
FOUNDRY_INLINE T mish(T x) {  // tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2)
  const T e = math::exp(x < (T)20 ? x : (T)20), n = e * (e + (T)2);
  return x > (T)20 ? x : x * (n / (n + (T)2));
}
template <class T> FOUNDRY_INLINE T hardsigmoid(T x) { return clamp(x + (T)3, (T)0, (T)6) / (T)6; }
template <class T> FOUNDRY_INLINE T hardswish(T x) { return x * clamp(x + (T)3, (T)0, (T)6) / (T)6; }
template <class T> FOUNDRY_INLINE T softsign(T x) { return x / ((T)1 + math::abs(x)); }
template <class T> FOUNDRY_INLINE T leaky_relu(T x, T slope) { return x > (T)0 ? x : x * slope; }
template <class T>
FOUNDRY_INLINE T elu(T x, T alpha) {
  const T negative = alpha * math::expm1(x);
  return x > (T)0 ? x : negative;
}
template <class T> FOUNDRY_INLINE T selu(T x) { return (T)1.0507009873554805 * elu(x, (T)1.6732632423543772); }

template <class T, if_floating<T> = 0> FOUNDRY_INLINE T fmod(T a, T b) { return std::fmod(a, b); }
template <class T, if_integer<T> = 0> FOUNDRY_INLINE T fmod(T a, T b) { return b == 0 ? (T)0 : (T)(a % b); }
template <class T>
FOUNDRY_INLINE T remainder(T a, T b) {
  const T rest = math::fmod(a, b);
  return (T)(rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest);
}
template <class T, if_integer<T> = 0>
FOUNDRY_INLINE T floordiv(T a, T b) {
  const T quotient = b == 0 ? (T)0 : (T)(a / b);
  return (T)(b != 0 && a % b != 0 && ((a < 0) != (b < 0)) ? quotient - 1 : quotient);
}
template <class T, if_floating<T> = 0>
FOUNDRY_INLINE T floordiv(T a, T b) {  // exact where a / b would round up to the next integer
  const T rest = math::fmod(a, b);
  const T quotient = (a - rest) / b;
  const T lowered = rest != 0 && ((b < 0) != (rest < 0)) ? quotient - 1 : quotient;
  const T whole = math::floor(lowered);
  return b == 0 ? a / b : (lowered - whole > (T)0.5 ? whole + 1 : whole);
}

FOUNDRY_INLINE double pow(double x, double y) { return std::pow(x, y); }
FOUNDRY_INLINE float pow(float x, float y) {  // through float64, where 29 spare bits absorb the exponent's error
  const double magnitude = math::exp((double)y * math::log((double)math::abs(x)));
  const bool whole = math::floor(y) == y;
  const bool odd = whole & (math::abs(y) < 16777216.0f) & (math::floor(y * 0.5f) * 2.0f != y);
  const float negative = whole ? (odd ? -(float)magnitude : (float)magnitude) : (math::isinf(x) ? (float)magnitude : NAN);
  const float value = (x < 0.0f) | (odd & __builtin_signbit(x)) ? negative : (float)magnitude;
  return (y == 0.0f) | (x == 1.0f) | ((x == -1.0f) & math::isinf(y)) ? 1.0f : value;
}
template <class T, if_integer<T> = 0>
FOUNDRY_INLINE T pow(T base, T exponent) {
  if (exponent < 0) return (T)(base == 1 ? 1 : base == (T)-1 ? (exponent % 2 ? -1 : 1) : 0);
  T result = 1;
  for (T left = exponent; left; left = (T)(left >> 1), base = (T)(base * base))
    if (left & 1) result = (T)(result * base);
  return result;
}

// A gather's index: negative counts from the end; the clamp keeps any value inside the buffer.
template <class T>
FOUNDRY_INLINE int64_t wrap_index(T index, int64_t bound) {
  const int64_t wrapped = (int64_t)index + ((int64_t)index < 0 ? bound : 0);
  return clamp(wrapped, (int64_t)0, bound - 1);
}
template <class T>
FOUNDRY_INLINE bool in_bounds(T index, int64_t bound) { return ((int64_t)index >= 0) & ((int64_t)index < bound); }

}  // namespace math

// ---------------------------------------------------------------- memory

// Writes a block past the caches (an output larger than the last-level cache is not read back before it is evicted, and
// a plain store would first read the line it overwrites). Falls back where the address or the machine does not allow it.
// By the compilers' own functions: reading <immintrin.h> takes g++ 0.3 s, as long as compiling many a kernel.
#if defined(__AVX512F__)
typedef long long StreamedLine __attribute__((vector_size(64), may_alias));
#elif defined(__AVX__)
typedef long long StreamedLine __attribute__((vector_size(32), may_alias));
#endif
template <class T, int N>
FOUNDRY_INLINE void stream(T* to, const T (&block)[N]) {
#if defined(__AVX__)
  constexpr size_t line = sizeof(StreamedLine);
  if constexpr (N * sizeof(T) % line == 0) {
    if ((uintptr_t)to % line == 0) {
      for (size_t byte = 0; byte < N * sizeof(T); byte += line) {
        StreamedLine* const target = (StreamedLine*)((char*)to + byte);
        const StreamedLine value = *(const StreamedLine*)((const char*)block + byte);
#if defined(__clang__)
        __builtin_nontemporal_store(value, target);
#elif defined(__AVX512F__)
        __builtin_ia32_movntdq512(target, value);
#else
        __builtin_ia32_movntdq256(target, value);
#endif
      }
      return;
    }
  }
#endif
  std::memcpy(to, block, sizeof(block));
}

// Asks for huge pages behind a large fresh output: the first write of every small page costs a fault, which can take
// longer than the kernel itself. Advice about our own memory only; where the system ignores it nothing changes.
FOUNDRY_INLINE void prefer_huge_pages(void* start, size_t bytes) {
#ifdef MADV_HUGEPAGE
  const uintptr_t begin = ((uintptr_t)start + 4095) & ~(uintptr_t)4095, end = ((uintptr_t)start + bytes) & ~(uintptr_t)4095;
  if (end > begin) madvise((void*)begin, end - begin, MADV_HUGEPAGE);
#else
  (void)start, (void)bytes;
#endif
}

// Orders streamed stores before what other threads read next; once a thread, at the end of a kernel.
FOUNDRY_INLINE void stream_fence() {
#if defined(__SSE2__)
  __builtin_ia32_sfence();
#endif
}

// Threads of a team for which the kernel has memory for `most`: no more than PyTorch has at the call.
FOUNDRY_INLINE int team_of(int most) {
  const int now = omp_get_max_threads();
  return now < most ? now : most;
}

// ---------------------------------------------------------------- neutral elements

template <class T>
constexpr T lowest() {
  if constexpr (std::numeric_limits<T>::has_infinity) return -std::numeric_limits<T>::infinity();
  else return std::numeric_limits<T>::lowest();
}
template <class T>
constexpr T highest() {
  if constexpr (std::numeric_limits<T>::has_infinity) return std::numeric_limits<T>::infinity();
  else return std::numeric_limits<T>::max();
}

template <class T, int L>
FOUNDRY_INLINE void fill(T (&lanes)[L], T value) {
#pragma omp simd
  for (int l = 0; l < L; ++l) lanes[l] = value;
}
