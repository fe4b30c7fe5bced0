// Products with few rows in A: B is read once, in the order it lies in memory, and never packed. G as in Blocked.
// Two forms: `rows` when B is contiguous along n, `dots` when it is contiguous along k.
namespace gemm {

template <class G>
struct Skinny {
  typedef typename G::T T;
  typedef typename vec<T, G::VB>::type V;
  static constexpr int W = G::VB / sizeof(T);
  static constexpr long M = G::M, N = G::N, K = G::K, NC = G::NC, KC = G::KC;
  static constexpr long COLUMN_BLOCKS = (N + NC - 1) / NC, SPLITS = G::SPLITS;
  static constexpr int GROUP = 8;  // rows of B that stream at once

  // sums[M][NC] += A[:, k0:k0 + GROUP] B[k0:k0 + GROUP, n0:n0 + columns]; `a` is that slice of A, [GROUP][M].
  template <int DEPTH>
  static GEMM_INLINE void rows_step(const T* a, const T* b, long stride, long columns, T* sums) {
    long j = 0;
    for (; j + W <= columns; j += W) {
      V bv[DEPTH];
#pragma GCC unroll 8
      for (int u = 0; u < DEPTH; ++u) bv[u] = *(const V*)(b + u * stride + j);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        V s = *(V*)(sums + i * NC + j);
#pragma GCC unroll 8
        for (int u = 0; u < DEPTH; ++u) s += (a[u * M + i] - V{}) * bv[u];
        *(V*)(sums + i * NC + j) = s;
      }
    }
    for (; j < columns; ++j)
      for (int i = 0; i < M; ++i)
        for (int u = 0; u < DEPTH; ++u) sums[i * NC + j] += a[u * M + i] * b[u * stride + j];
  }

  static void rows(const G& g, long batch, long n0, long columns, long k0, long k1, T* sums, T* scratch) {
    alignas(64) T a[GROUP * M], run[GROUP];
    for (long k = k0; k < k1; k += GROUP) {
      const long depth = k1 - k < GROUP ? k1 - k : GROUP;
      if constexpr (G::A_ALONG_K)
        for (int i = 0; i < M; ++i) {
          g.a_run(batch, i, k, depth, run);
          for (long u = 0; u < depth; ++u) a[u * M + i] = run[u];
        }
      else
        for (long u = 0; u < depth; ++u) g.a_run(batch, 0, k + u, M, a + u * M);
      const T* b = scratch;
      long stride = NC;
      if constexpr (G::DIRECT_B) {
        b = g.b(batch) + k * G::B_ROW_STRIDE + n0;
        stride = G::B_ROW_STRIDE;
      } else {
        for (long u = 0; u < depth; ++u) g.b_run(batch, k + u, n0, columns, scratch + u * NC);
      }
      if (depth == GROUP)
        rows_step<GROUP>(a, b, stride, columns, sums);
      else
        for (long u = 0; u < depth; ++u) rows_step<1>(a + u * M, b + u * stride, stride, columns, sums);
    }
  }

  // sums[M][NC] += A[:, k:k + depth] B[k:k + depth, j:j + COLUMNS], columns of B at `b`, `stride` apart.
  template <int COLUMNS>
  static GEMM_INLINE void dots_step(const T* a, const T* b, long stride, long depth, T* sums) {
    V acc[M][COLUMNS];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < COLUMNS; ++j) acc[i][j] = V{};
    long k = 0;
    for (; k + W <= depth; k += W) {
      V bv[COLUMNS];
#pragma GCC unroll 4
      for (int j = 0; j < COLUMNS; ++j) bv[j] = *(const V*)(b + j * stride + k);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const V av = *(const V*)(a + i * KC + k);
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; ++j) acc[i][j] += av * bv[j];
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < COLUMNS; ++j) {
        T total = 0;
        for (int lane = 0; lane < W; ++lane) total += acc[i][j][lane];
        for (long rest = k; rest < depth; ++rest) total += a[i * KC + rest] * b[j * stride + rest];
        sums[i * NC + j] += total;
      }
  }

  static void dots(const G& g, long batch, long n0, long columns, long k0, long k1, T* sums, T* scratch) {
    constexpr int GROUP_COLUMNS = M <= 4 ? 4 : 2;
    T *a = scratch, *copy = scratch + M * KC;
    for (long k = k0; k < k1; k += KC) {
      const long depth = k1 - k < KC ? k1 - k : KC;
      if constexpr (G::A_ALONG_K)
        for (int i = 0; i < M; ++i) g.a_run(batch, i, k, depth, a + i * KC);
      else
        for (long d = 0; d < depth; ++d) {
          T column[M];
          g.a_run(batch, 0, k + d, M, column);
          for (int i = 0; i < M; ++i) a[i * KC + d] = column[i];
        }
      const auto at = [&](long j, long count) -> const T* {
        if constexpr (G::DIRECT_B) return g.b(batch) + (n0 + j) * G::B_COLUMN_STRIDE + k;
        for (long c = 0; c < count; ++c) g.b_run(batch, k, n0 + j + c, depth, copy + c * KC);
        return copy;
      };
      constexpr long STRIDE = G::DIRECT_B ? G::B_COLUMN_STRIDE : KC;
      long j = 0;
      for (; j + GROUP_COLUMNS <= columns; j += GROUP_COLUMNS)
        dots_step<GROUP_COLUMNS>(a, at(j, GROUP_COLUMNS), STRIDE, depth, sums + j);
      for (; j < columns; ++j) dots_step<1>(a, at(j, 1), STRIDE, depth, sums + j);
    }
  }

  static void task(const G& g, long batch, long n0, long split, T* sums, T* scratch) {
    const long columns = N - n0 < NC ? N - n0 : NC;
    const long span = ((K + SPLITS - 1) / SPLITS + GROUP - 1) / GROUP * GROUP;
    const long k0 = split * span < K ? split * span : K, k1 = k0 + span < K ? k0 + span : K;
    memset(sums, 0, M * NC * sizeof(T));
    if constexpr (G::B_ALONG_N)
      rows(g, batch, n0, columns, k0, k1, sums, scratch);
    else
      dots(g, batch, n0, columns, k0, k1, sums, scratch);
  }
};

// Scratch: a copy of operand runs and one block of sums a thread; with SPLITS > 1 also every split's sums, added up
// in a fixed order, so that the result does not depend on the schedule.
template <class G>
static void run_skinny(const G& g, char* workspace) {
  typedef Skinny<G> S;
  typedef typename G::T T;
  constexpr long BLOCK = G::M * G::NC, TASKS = G::BATCH * S::COLUMN_BLOCKS * G::SPLITS;
  T* base = aligned<T>(workspace);
  T* partial = base + G::THREADS * (G::A_SPACE + BLOCK);
#pragma omp parallel num_threads(team_of(G::THREADS)) if (G::THREADS > 1)
  {
    T* scratch = base + omp_get_thread_num() * (G::A_SPACE + BLOCK);
#pragma omp for schedule(dynamic, 1)
    for (long index = 0; index < TASKS; ++index) {
      const long block = index / G::SPLITS, batch = block / S::COLUMN_BLOCKS, n0 = block % S::COLUMN_BLOCKS * G::NC;
      T* sums = G::SPLITS > 1 ? partial + index * BLOCK : scratch + G::A_SPACE;
      S::task(g, batch, n0, index % G::SPLITS, sums, scratch);
      if (G::SPLITS == 1) g.store(batch, 0, G::M, n0, G::N - n0 < G::NC ? G::N - n0 : G::NC, sums, G::NC);
    }
    if constexpr (G::SPLITS > 1) {
#pragma omp for schedule(static)
      for (long block = 0; block < TASKS / G::SPLITS; ++block) {
        T* sums = partial + block * G::SPLITS * BLOCK;
        for (long split = 1; split < G::SPLITS; ++split)
          for (long e = 0; e < BLOCK; ++e) sums[e] += sums[split * BLOCK + e];
        const long n0 = block % S::COLUMN_BLOCKS * G::NC;
        g.store(block / S::COLUMN_BLOCKS, 0, G::M, n0, G::N - n0 < G::NC ? G::N - n0 : G::NC, sums, G::NC);
      }
    }
  }
}

}  // namespace gemm
