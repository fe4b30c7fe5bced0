// Special functions of both targets, in float64: a file that calls one of them holds this text after its runtime.

namespace math {

#if defined(FOUNDRY_INLINE)
#define SPECIAL FOUNDRY_INLINE
#define FOUNDRY_INF INFINITY
#define FOUNDRY_NAN NAN
#else
#define SPECIAL DEVICE
#endif
#define SPECIAL_1(name) SPECIAL float name(float x) { return (float)name((double)x); }
#define SPECIAL_2(name) SPECIAL float name(float x, float y) { return (float)name((double)x, (double)y); }

// Recurrence up to 10, then the asymptotic series; below zero by reflection.
SPECIAL double digamma(double x) {
  if (x == 0.0) return 1.0 / x < 0.0 ? FOUNDRY_INF : -FOUNDRY_INF;
  double found = 0.0;
  if (x < 0.0) {
    const double whole = math::trunc(x);
    if (whole == x) return FOUNDRY_NAN;
    found = -3.14159265358979323846 / math::tan(3.14159265358979323846 * (x - whole));
    x = 1.0 - x;
  }
  for (; x < 10.0; x += 1.0) found -= 1.0 / x;
  const double z = 1.0 / (x * x);
  double series = 1.0 / 12.0;
  series = series * z - 691.0 / 32760.0;
  series = series * z + 1.0 / 132.0;
  series = series * z - 1.0 / 240.0;
  series = series * z + 1.0 / 252.0;
  series = series * z - 1.0 / 120.0;
  series = series * z + 1.0 / 12.0;
  return found + math::log(x) - 0.5 / x - series * z;
}
SPECIAL_1(digamma)

// A rational start and two steps of Newton's method, as PyTorch's own.
SPECIAL double erfinv(double y) {
  const double size = math::abs(y);
  if (!(size < 1.0)) return size == 1.0 ? y * FOUNDRY_INF : FOUNDRY_NAN;
  double x;
  if (size <= 0.7) {
    const double z = y * y;
    const double above = ((-0.140543331 * z + 0.914624893) * z - 1.645349621) * z + 0.886226899;
    x = y * above / ((((0.012229801 * z - 0.329097515) * z + 1.442710462) * z - 2.118377725) * z + 1.0);
  } else {
    const double z = math::sqrt(-math::log((1.0 - size) / 2.0));
    const double above = ((1.641345311 * z + 3.429567803) * z - 1.624906493) * z - 1.970840454;
    x = math::copysign(above, y) / ((1.637067800 * z + 3.543889200) * z + 1.0);
  }
  for (int step = 0; step < 2; ++step) x -= (math::erf(x) - y) / (1.12837916709551257390 * math::exp(-x * x));
  return x;
}
SPECIAL_1(erfinv)

// exp(x * x) * erfc(x): as it stands where neither overflows, by its asymptotic series beyond.
SPECIAL double erfcx(double x) {
  if (x < 10.0) return x < -26.7 ? FOUNDRY_INF : math::exp(x * x) * math::erfc(x);
  const double z = -0.5 / (x * x);
  double sum = 1.0, term = 1.0;
  for (int k = 1; k < 12; ++k) sum += term *= z * (2 * k - 1);
  return sum * 0.56418958354775628695 / x;
}
SPECIAL_1(erfcx)

// Hurwitz's zeta function: terms, then Euler and Maclaurin's series.
SPECIAL double zeta(double x, double q) {
  if (!(x > 1.0)) return x == 1.0 ? FOUNDRY_INF : FOUNDRY_NAN;
  if (q <= 0.0 && q == math::floor(q)) return FOUNDRY_INF;
  if (q <= 0.0 && x != math::floor(x)) return FOUNDRY_NAN;
  double sum = math::pow(q, -x), at = q, term = 0.0;
  for (int i = 0; i < 9 || at <= 9.0; ++i) {
    at += 1.0;
    sum += term = math::pow(at, -x);
    if (math::abs(term / sum) < 1e-16) return sum;
  }
  sum += term * at / (x - 1.0) - 0.5 * term;
  const double below[] = {12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9,
                          7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14,
                          -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18};
  double rising = 1.0, k = 0.0;
  for (int i = 0; i < 12; ++i) {
    rising *= x + k;
    term /= at;
    const double part = rising * term / below[i];
    sum += part;
    if (math::abs(part / sum) < 1e-16) return sum;
    rising *= x + k + 1.0;
    term /= at;
    k += 2.0;
  }
  return sum;
}
SPECIAL_2(zeta)

// exp(-|x|) times the modified Bessel function of order 0 or 1: its series, whose terms have one sign, up to 40.
SPECIAL double scaled_bessel_i(int order, double x) {
  const double size = math::abs(x), sign = order && x < 0.0 ? -1.0 : 1.0;
  if (size <= 40.0) {
    const double square = 0.25 * size * size;
    double term = order ? 0.5 * size : 1.0, sum = term;
    for (int k = 1; k < 120 && term > 1e-17 * sum; ++k) sum += term *= square / ((double)k * (k + order));
    return sign * math::exp(-size) * sum;
  }
  double term = 1.0, sum = 1.0;
  for (int k = 1; k < 20; ++k) {
    const double odd = 2 * k - 1;
    sum += term *= (odd * odd - 4.0 * order) / (8.0 * k * size);
  }
  return x == x ? sign * sum / math::sqrt(6.28318530717958647693 * size) : x;
}
SPECIAL double i0e(double x) { return scaled_bessel_i(0, x); }
SPECIAL double i1e(double x) { return scaled_bessel_i(1, x); }
SPECIAL double i0(double x) { return math::exp(math::abs(x)) * scaled_bessel_i(0, x); }
SPECIAL double i1(double x) { return math::exp(math::abs(x)) * scaled_bessel_i(1, x); }
SPECIAL_1(i0e)
SPECIAL_1(i1e)
SPECIAL_1(i0)
SPECIAL_1(i1)

SPECIAL double bessel_j0(double x) { return ::j0(x); }
SPECIAL double bessel_j1(double x) { return ::j1(x); }
SPECIAL double bessel_y0(double x) { return x > 0.0 ? ::y0(x) : x == 0.0 ? -FOUNDRY_INF : FOUNDRY_NAN; }
SPECIAL double bessel_y1(double x) { return x > 0.0 ? ::y1(x) : x == 0.0 ? -FOUNDRY_INF : FOUNDRY_NAN; }
SPECIAL_1(bessel_j0)
SPECIAL_1(bessel_j1)
SPECIAL_1(bessel_y0)
SPECIAL_1(bessel_y1)

// Orthogonal polynomials by their recurrences of three terms; `first` is that of degree 1.
SPECIAL double polynomial(int kind, double first, double x, double degree) {
  const long long count = (long long)degree;
  double before = 1.0, now = first;
  if (count <= 0) return count ? 0.0 : 1.0;
  for (long long step = 1; step < count; ++step) {
    const double k = (double)step;
    const double next = kind == 0   ? 2.0 * x * now - before
                        : kind == 1 ? 2.0 * x * now - 2.0 * k * before
                        : kind == 2 ? x * now - k * before
                        : kind == 3 ? ((2.0 * k + 1.0 - x) * now - k * before) / (k + 1.0)
                                    : ((2.0 * k + 1.0) * x * now - k * before) / (k + 1.0);
    before = now;
    now = next;
  }
  return now;
}
SPECIAL double chebyshev_t(double x, double n) { return polynomial(0, x, x, n); }
SPECIAL double chebyshev_u(double x, double n) { return polynomial(0, 2.0 * x, x, n); }
SPECIAL double chebyshev_v(double x, double n) { return polynomial(0, 2.0 * x - 1.0, x, n); }
SPECIAL double chebyshev_w(double x, double n) { return polynomial(0, 2.0 * x + 1.0, x, n); }
SPECIAL double hermite_h(double x, double n) { return polynomial(1, 2.0 * x, x, n); }
SPECIAL double hermite_he(double x, double n) { return polynomial(2, x, x, n); }
SPECIAL double laguerre(double x, double n) { return polynomial(3, 1.0 - x, x, n); }
SPECIAL double legendre(double x, double n) { return polynomial(4, x, x, n); }
SPECIAL_2(chebyshev_t)
SPECIAL_2(chebyshev_u)
SPECIAL_2(chebyshev_v)
SPECIAL_2(chebyshev_w)
SPECIAL_2(hermite_h)
SPECIAL_2(hermite_he)
SPECIAL_2(laguerre)
SPECIAL_2(legendre)

template <class T> SPECIAL T gcd(T x, T y) {
  while (y) {
    const T rest = (T)(x % y);
    x = y;
    y = rest;
  }
  return x < 0 ? (T)-x : x;
}

}  // namespace math
