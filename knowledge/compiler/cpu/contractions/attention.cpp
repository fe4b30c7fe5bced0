// Attention in one pass: softmax(scale q k^T + mask) v with a running maximum and sum (Milakov and Gimelshein 2018; the
// blocking is FlashAttention's, Dao 2022). A task packs the keys and values of a batch point once, then takes its query
// blocks through all key blocks: scores and weights stay in L1/L2. G: sizes, choices, and the inlined runs and store.
namespace attention {

template <class G>
struct Flash {
  typedef typename G::T T;
  static constexpr int W = G::VB / sizeof(T), MR = G::MR, NR = G::NV * W, VALUE_NR = G::VALUE_NV * W;
  static constexpr long KEY_PANELS = (G::COLUMNS + NR - 1) / NR, VALUE_PANELS = (G::VALUE_HEAD + VALUE_NR - 1) / VALUE_NR;
  static constexpr long Q_PITCH = G::HEAD + W, S_PITCH = G::KEY_BLOCK + W, O_PITCH = VALUE_PANELS * VALUE_NR;
  static constexpr long QUERY_BLOCKS = (G::ROWS + G::QUERY_BLOCK - 1) / G::QUERY_BLOCK;
  static constexpr T NONE = -std::numeric_limits<T>::infinity();

  struct Scratch {
    T *keys, *values, *q, *scores, *out, *highest, *total;
  };

  static Scratch carve(T* base) {
    Scratch s;
    s.keys = base;
    s.values = s.keys + KEY_PANELS * NR * G::HEAD;
    s.q = s.values + G::COLUMNS * O_PITCH;
    s.scores = s.q + G::QUERY_BLOCK * Q_PITCH;
    s.out = s.scores + G::QUERY_BLOCK * S_PITCH;
    s.highest = s.out + G::QUERY_BLOCK * O_PITCH;
    s.total = s.highest + G::QUERY_BLOCK;
    return s;
  }

  // Keys as panels [HEAD][NR] of k^T, values as panels [column][VALUE_NR], key block after key block.
  static void pack(const G& g, long batch, const Scratch& s) {
    for (long p = 0; p < KEY_PANELS; ++p) {
      const long j0 = p * NR, columns = G::COLUMNS - j0 < NR ? G::COLUMNS - j0 : NR;
      gemm::pack_panel<T, G::VB, NR, G::KEYS_ALONG_COLUMNS>(
          G::HEAD, columns, s.keys + p * NR * G::HEAD,
          [&](long d, long j, long count, T* to) { g.k_run(batch, j0 + j, d, count, to); });
    }
    for (long k0 = 0; k0 < G::COLUMNS; k0 += G::KEY_BLOCK) {
      const long depth = G::COLUMNS - k0 < G::KEY_BLOCK ? G::COLUMNS - k0 : G::KEY_BLOCK;
      for (long p = 0; p < VALUE_PANELS; ++p) {
        const long e0 = p * VALUE_NR, columns = G::VALUE_HEAD - e0 < VALUE_NR ? G::VALUE_HEAD - e0 : VALUE_NR;
        gemm::pack_panel<T, G::VB, VALUE_NR, G::VALUES_ALONG_HEAD>(
            depth, columns, s.values + k0 * O_PITCH + p * VALUE_NR * depth,
            [&](long j, long e, long count, T* to) { g.v_run(batch, k0 + j, e0 + e, count, to); });
      }
    }
  }

  // Scores of one row over a key block become weights exp(score - highest so far); what was summed before shrinks.
  static GEMM_INLINE void soften(const G& g, long batch, long row, long k0, long depth, long seen, T* s, T* out, T& highest, T& total) {
    g.mask(batch, row, k0, seen, s);
    T top = highest;
#pragma omp simd reduction(max : top)
    for (long j = 0; j < seen; ++j) top = s[j] > top ? s[j] : top;
    const T base = top == NONE ? (T)0 : top;
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < seen; ++j) {
      const T weight = math::exp(s[j] - base);
      s[j] = weight;
      sum += weight;
    }
    for (long j = seen; j < depth; ++j) s[j] = 0;
    if (k0 > 0 && top != highest) {
      const T shrink = math::exp(highest - base);
      total *= shrink;
#pragma omp simd
      for (long e = 0; e < O_PITCH; ++e) out[e] *= shrink;
    }
    total += sum;
    highest = top;
  }

  static void query_block(const G& g, long batch, long i0, const Scratch& s) {
    const long rows = G::ROWS - i0 < G::QUERY_BLOCK ? G::ROWS - i0 : G::QUERY_BLOCK;
    const long tiled = (rows + MR - 1) / MR * MR;
    for (long i = 0; i < rows; ++i) g.q_run(batch, i0 + i, s.q + i * Q_PITCH);
    memset(s.q + rows * Q_PITCH, 0, (tiled - rows) * Q_PITCH * sizeof(T));
    for (long i = 0; i < tiled; ++i) {
      s.highest[i] = NONE;
      s.total[i] = 0;
    }
    const long stop = G::CAUSAL && i0 + rows < G::COLUMNS ? i0 + rows : G::COLUMNS;
    for (long k0 = 0; k0 < stop; k0 += G::KEY_BLOCK) {
      const long depth = G::COLUMNS - k0 < G::KEY_BLOCK ? G::COLUMNS - k0 : G::KEY_BLOCK;
      for (long j = 0; j < depth && k0 + j < stop; j += NR)
        for (long i = 0; i < tiled; i += MR)
          gemm::micro<T, G::VB, MR, G::NV, Q_PITCH, 1, NR, 0, S_PITCH>(
              G::HEAD, s.q + i * Q_PITCH, s.keys + (k0 + j) * G::HEAD, s.scores + i * S_PITCH + j, false);
      for (long i = 0; i < rows; ++i) {
        const long visible = G::CAUSAL ? i0 + i + 1 - k0 : depth;
        const long seen = visible < 0 ? 0 : visible < depth ? visible : depth;
        soften(g, batch, i0 + i, k0, depth, seen, s.scores + i * S_PITCH, s.out + i * O_PITCH, s.highest[i], s.total[i]);
      }
      memset(s.scores + rows * S_PITCH, 0, (tiled - rows) * S_PITCH * sizeof(T));
      const long used = stop - k0 < depth ? stop - k0 : depth;
      for (long p = 0; p < VALUE_PANELS; ++p)
        for (long i = 0; i < tiled; i += MR)
          gemm::micro<T, G::VB, MR, G::VALUE_NV, S_PITCH, 1, VALUE_NR, 0, O_PITCH>(
              used, s.scores + i * S_PITCH, s.values + k0 * O_PITCH + p * VALUE_NR * depth,
              s.out + i * O_PITCH + p * VALUE_NR, k0 > 0);
    }
    for (long i = 0; i < rows; ++i) {
      T* out = s.out + i * O_PITCH;
      const bool empty = s.total[i] == 0;
      const T scale = (T)1 / s.total[i], none = G::EMPTY_IS_NAN ? std::numeric_limits<T>::quiet_NaN() : (T)0;
#pragma omp simd
      for (long e = 0; e < G::VALUE_HEAD; ++e) out[e] = empty ? none : out[e] * scale;
      g.store(batch, i0 + i, out);
    }
  }
};

template <class G>
static void run(const G& g, char* workspace) {
  typedef Flash<G> F;
  typedef typename G::T T;
  constexpr long CHUNKS = (F::QUERY_BLOCKS + G::CHUNK - 1) / G::CHUNK;
  T* base = gemm::aligned<T>(workspace);
#pragma omp parallel num_threads(team_of(G::THREADS)) if (G::THREADS > 1)
  {
    const typename F::Scratch scratch = F::carve(base + omp_get_thread_num() * G::SPACE);
    long packed = -1;
    const auto task = [&](long index) {
      const long batch = index / CHUNKS, first = index % CHUNKS * G::CHUNK;
      if (packed != batch) F::pack(g, batch, scratch);
      packed = batch;
      for (long block = first; block < first + G::CHUNK && block < F::QUERY_BLOCKS; ++block)
        F::query_block(g, batch, block * G::QUERY_BLOCK, scratch);
    };
    if constexpr (G::DYNAMIC) {
#pragma omp for schedule(dynamic, 1)
      for (long index = 0; index < G::BATCH * CHUNKS; ++index) task(index);
    } else {
#pragma omp for schedule(static)
      for (long index = 0; index < G::BATCH * CHUNKS; ++index) task(index);
    }
  }
}

}  // namespace attention
