// Grouped matrix product: each group of items has a matrix B of its own. A task is a block of rows of one group by some
// panels of its B; it gathers its rows of A into packed memory, so tiles never mix groups. A kernel is a struct G like
// that of gemm.cpp, whose `store` writes one row.

namespace gemm {

template <class G>
struct Grouped {
  typedef typename G::T T;
  static constexpr int W = G::VB / sizeof(T), MR = G::MR, NV = G::NV, NR = NV * W;
  static constexpr long K = G::K, N = G::N, KC = G::KC, PITCH = G::PITCH, MC = G::MC, NC = G::NC;
  static constexpr long PANELS = (N + NR - 1) / NR, COLUMN_BLOCKS = (PANELS + NC - 1) / NC;

  static long panel_at(long group, long p) { return (group * PANELS + p) * K * NR; }

  static void pack(const G& g, long group, long p, T* b) {
    const long columns = N - p * NR < NR ? N - p * NR : NR;
    pack_panel<T, G::VB, NR, G::B_ALONG_N>(K, columns, b + panel_at(group, p), [&](long k, long j, long count, T* to) {
      g.b_run(group, k, p * NR + j, count, to);
    });
  }

  template <int ROWS>
  static void tile(const G& g, const int32_t* items, long rows, const T* a, const T* b, long p) {
    alignas(64) T sums[ROWS * NR];
    for (long k0 = 0; k0 < K; k0 += KC) {
      const long kc = K - k0 < KC ? K - k0 : KC;
      micro<T, G::VB, ROWS, NV, PITCH, 1, NR, 0>(kc, a + k0, b + k0 * NR, sums, k0 > 0);
    }
    const long columns = N - p * NR < NR ? N - p * NR : NR;
    for (long i = 0; i < rows; ++i) g.store(items[i], p * NR, columns, sums + i * NR);
  }

  static void block(const G& g, long group, const int32_t* items, long rows, long p0, long p1, const T* b, T* a) {
    for (long i = 0; i < rows; ++i) g.a_run(items[i], 0, K, a + i * PITCH);
    const long whole = (rows + MR - 1) / MR * MR;
    for (long i = rows; i < whole; ++i) memset(a + i * PITCH, 0, K * sizeof(T));
    for (long p = p0; p < p1; ++p)
      for (long i = 0; i < rows; i += MR) {
        const long some = rows - i < MR ? rows - i : MR;
        if (some > MR / 2)
          tile<MR>(g, items + i, some, a + i * PITCH, b + panel_at(group, p), p);
        else
          tile<(MR + 1) / 2>(g, items + i, some, a + i * PITCH, b + panel_at(group, p), p);
      }
  }

  // Blocks of rows of all groups, numbered through.
  static void task(const G& g, long index, const T* b, T* a) {
    const long p0 = index % COLUMN_BLOCKS * NC, p1 = p0 + NC < PANELS ? p0 + NC : PANELS;
    long at = index / COLUMN_BLOCKS;
    for (long group = 0; group < G::GROUPS; ++group) {
      const long first = g.starts[group], count = g.starts[group + 1] - first, blocks = (count + MC - 1) / MC;
      if (at < blocks) {
        const long rows = count - at * MC < MC ? count - at * MC : MC;
        block(g, group, g.order + first + at * MC, rows, p0, p1, b, a);
        return;
      }
      at -= blocks;
    }
  }
};

template <class G>
static void run_grouped(const G& g, const typename G::T* prepared, char* workspace) {
  typedef typename G::T T;
  T* const base = aligned<T>(workspace);
  T* const packed = base + G::THREADS * G::A_SPACE;
  const T* const b = G::PREPARED_B ? prepared : packed;
  long tasks = 0;
  for (long group = 0; group < G::GROUPS; ++group)
    tasks += (g.starts[group + 1] - g.starts[group] + G::MC - 1) / G::MC * Grouped<G>::COLUMN_BLOCKS;
#pragma omp parallel num_threads(team_of(G::THREADS)) if (G::THREADS > 1)
  {
    T* const a = base + omp_get_thread_num() * G::A_SPACE;
    if constexpr (!G::PREPARED_B) {
#pragma omp for schedule(dynamic, 1)
      for (long index = 0; index < G::GROUPS * Grouped<G>::PANELS; ++index) {
        const long group = index / Grouped<G>::PANELS;
        if (g.starts[group + 1] > g.starts[group]) Grouped<G>::pack(g, group, index % Grouped<G>::PANELS, packed);
      }
    }
#pragma omp for schedule(dynamic, 1)
    for (long index = 0; index < tasks; ++index) Grouped<G>::task(g, index, b, a);
  }
}

template <class G>
static void prepare_grouped(const G& g, typename G::T* out) {
  for (long group = 0; group < G::GROUPS; ++group)
    for (long p = 0; p < Grouped<G>::PANELS; ++p) Grouped<G>::pack(g, group, p, out);
}

}  // namespace gemm
