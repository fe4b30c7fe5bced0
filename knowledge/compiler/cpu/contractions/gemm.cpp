// Matrix product: packed panels, register tiles, fused epilogue. The blocking is that of Goto and van de Geijn (2008)
// and BLIS (Van Zee and van de Geijn 2015). A kernel is a struct G: sizes and choices as constants, and the inlined
// functions a_run, b_run (one contiguous run of an operand, prologue applied) and store (a tile's epilogue).
#include <omp.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512BF16__) && defined(GEMM_PAIRS)
#include <immintrin.h>
#endif

#define GEMM_INLINE inline __attribute__((always_inline))

namespace gemm {

template <class T, int BYTES>
struct vec {
  typedef T type __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
};

template <class T>
GEMM_INLINE T* aligned(char* p) {
  return (T*)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

// Two bfloat16 that are neighbours along k, as one word: one instruction multiplies 16 pairs of them and adds both products
// to a float32. Words move like floats and are never computed with. For kernels that ask for it: reading its header
// takes 0.3 s.
#if defined(__AVX512BF16__) && defined(GEMM_PAIRS)
constexpr int PAIR_BYTES = 64;  // of the vectors for which there is such an instruction
template <class V>
GEMM_INLINE V add_pairs(V sum, const float* a, V b) {
  int word;
  memcpy(&word, a, sizeof(word));
  return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(word), (__m512bh)b);
}
#else
constexpr int PAIR_BYTES = 0;
template <class V>
GEMM_INLINE V add_pairs(V sum, const float*, V) {
  return sum;
}
#endif

// out[e] = the upper halves of low[e * STEP] and high[e * STEP], which are all there is of a bfloat16.
template <int STEP>
GEMM_INLINE void join(const float* low, const float* high, long count, float* out) {
  typedef uint32_t word __attribute__((may_alias));
#pragma omp simd
  for (long e = 0; e < count; ++e)
    ((word*)out)[e] = ((const word*)low)[e * STEP] >> 16 | (((const word*)high)[e * STEP] & 0xffff0000u);
}

// tile[MR][NV * W] (rows PITCH apart) = (or +=, when `add`) A[MR x kc] B[kc x NV * W]. A is read by broadcast at strides RS and CS, B by
// whole vectors at row stride BS. Each call starts its sums at zero, so rounding errors grow with kc, not with K.
template <class T, int VB, int MR, int NV, long RS, long CS, long BS, int AHEAD, long PITCH = NV * (VB / sizeof(T)),
          bool PAIRS = false>
static void micro(long kc, const T* a, const T* b, T* tile, bool add) {
  typedef typename vec<T, VB>::type V;
  constexpr int W = VB / sizeof(T);
  V acc[MR][NV];
#pragma GCC unroll 32
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) acc[i][j] = V{};
#pragma GCC unroll 4
  for (long k = 0; k < kc; ++k) {
    V bv[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) {
      bv[j] = *(const V*)(b + j * W);
      if (AHEAD) __builtin_prefetch(b + AHEAD * BS + j * W);
    }
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i) {
      if constexpr (PAIRS) {
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) acc[i][j] = add_pairs(acc[i][j], a + i * RS, bv[j]);
      } else {
        const V s = a[i * RS] - V{};
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) acc[i][j] += s * bv[j];
      }
    }
    a += CS;
    b += BS;
  }
#pragma GCC unroll 32
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) {
      V* to = (V*)(tile + i * PITCH + j * W);
      *to = add ? *to + acc[i][j] : acc[i][j];
    }
}

// dst[W x W] = transpose of src[W x W], log2(W) rounds of interleaving on registers.
template <class T, int VB>
GEMM_INLINE void transpose(const T* src, long src_stride, T* dst, long dst_stride) {
  constexpr int W = VB / sizeof(T);
#if defined(__clang__)
  for (int i = 0; i < W; ++i)
    for (int j = 0; j < W; ++j) dst[j * dst_stride + i] = src[i * src_stride + j];
#else
  typedef typename vec<T, VB>::type V;
  typedef typename std::conditional<sizeof(T) == 8, int64_t, int32_t>::type I;
  typedef I M __attribute__((vector_size(VB)));
  M low, high;
#pragma GCC unroll 32
  for (int i = 0; i < W; ++i) {
    low[i] = i / 2 + (i & 1 ? W : 0);
    high[i] = low[i] + W / 2;
  }
  V r[W], s[W];
#pragma GCC unroll 32
  for (int i = 0; i < W; ++i) r[i] = *(const V*)(src + i * src_stride);
#pragma GCC unroll 8
  for (int round = 1; round < W; round *= 2) {
#pragma GCC unroll 32
    for (int i = 0; i < W / 2; ++i) {
      s[2 * i] = __builtin_shuffle(r[i], r[i + W / 2], low);
      s[2 * i + 1] = __builtin_shuffle(r[i], r[i + W / 2], high);
    }
#pragma GCC unroll 32
    for (int i = 0; i < W; ++i) r[i] = s[i];
  }
#pragma GCC unroll 32
  for (int i = 0; i < W; ++i) *(V*)(dst + i * dst_stride) = r[i];
#endif
}

// out[k][WIDTH] from runs along k: `run(k, j, count, to)` reads `count` of column j. Columns past `columns` become zero.
template <class T, int VB, int WIDTH, class Run>
static void pack_transposed(long kc, long columns, T* out, Run run) {
  constexpr int W = VB / sizeof(T), DEPTH = 4 * W;
  alignas(64) T rows[W * DEPTH], square[W * W];
  for (long j = 0; j < WIDTH; j += W)
    for (long k = 0; k < kc; k += DEPTH) {
      const long depth = kc - k < DEPTH ? kc - k : DEPTH;
      for (long i = 0; i < W; ++i) {
        if (j + i < columns) run(k, j + i, depth, rows + i * DEPTH);
        const long have = j + i < columns ? depth : 0;
        if (have < DEPTH) memset(rows + i * DEPTH + have, 0, (DEPTH - have) * sizeof(T));
      }
      for (long d = 0; d < depth; d += W) {
        if (depth - d >= W) {
          transpose<T, VB>(rows + d, DEPTH, out + (k + d) * WIDTH + j, WIDTH);
        } else {
          transpose<T, VB>(rows + d, DEPTH, square, W);
          for (long r = 0; r < depth - d; ++r) memcpy(out + (k + d + r) * WIDTH + j, square + r * W, W * sizeof(T));
        }
      }
    }
}

// A panel of B, [kc][PANEL]. `run(k, j, count, to)` reads along n or along k; columns past `columns` become zero.
template <class T, int VB, int PANEL, bool ALONG_N, class Run>
static GEMM_INLINE void pack_panel(long kc, long columns, T* out, Run run) {
  if constexpr (ALONG_N) {
    for (long k = 0; k < kc; ++k, out += PANEL) {
      run(k, 0, columns, out);
      for (long j = columns; j < PANEL; ++j) out[j] = 0;
    }
  } else {
    pack_transposed<T, VB, PANEL>(kc, columns, out, run);
  }
}

// With PAIRS k counts words from here on: K, KC and strides along k.
template <class G>
struct Blocked {
  typedef typename G::T T;
  static constexpr bool PAIRS = G::PAIRS && G::VB == PAIR_BYTES;
  static constexpr int W = G::VB / sizeof(T), MR = G::MR, NV = G::NV, NR = NV * W;
  static constexpr long M = G::M, N = G::N, K = PAIRS ? (G::K + 1) / 2 : G::K, KC = G::KC;
  static constexpr long FULL = N / NR, REST = N % NR;  // whole panels, columns of the last one
  static constexpr int REST_NV = (REST + W - 1) / W, REST_WIDTH = REST_NV * W, REST_MR = M % MR;
  static constexpr long PANELS = FULL + (REST > 0), WIDTH = FULL * NR + REST_WIDTH;
  static constexpr long STORED = G::DIRECT_B ? REST_WIDTH : WIDTH;  // packed columns of a row of B
  static constexpr long ROW_BLOCKS = (M + G::MC - 1) / G::MC, COLUMN_BLOCKS = (PANELS + G::NC - 1) / G::NC;
  static constexpr long TILES = (M + MR - 1) / MR, TILE = MR * NR;
  static constexpr long A_ROW = G::PACK_A ? (G::A_ALONG_K ? G::A_PITCH : 1) : G::A_ROW_STRIDE;
  static constexpr long A_COLUMN = G::PACK_A ? (G::A_ALONG_K ? 1 : G::A_PITCH) : G::A_COLUMN_STRIDE;

  static long panel_at(long p, long kc) { return G::DIRECT_B ? 0 : p * NR * kc; }

  // Panel p of K block k0: `kc` rows of NR (or REST_WIDTH) columns.
  static void pack_panel(const G& g, long batch, long k0, long kc, long p, T* block) {
    T* out = block + panel_at(p, kc);
    if (p < FULL)
      pack_columns<NR>(g, batch, k0, kc, p * NR, NR, out);
    else if constexpr (REST > 0)
      pack_columns<REST_WIDTH>(g, batch, k0, kc, p * NR, REST, out);
  }

  template <int PANEL>
  static GEMM_INLINE void pack_columns(const G& g, long batch, long k0, long kc, long n0, long columns, T* out) {
    const auto run = [&](long k, long j, long count, T* to) { g.b_run(batch, k, j, count, to); };
    gemm::pack_panel<T, G::VB, PANEL, G::B_ALONG_N>(kc, columns, out, [&](long k, long j, long count, T* to) {
      read<!G::B_ALONG_N>(k0 + k, n0 + j, count, to, run);
    });
  }

  // `count` elements or words of an operand, from k and j on, along k or along j. `run` reads so many elements.
  template <bool ALONG_K, class Run>
  static GEMM_INLINE void read(long k, long j, long count, T* out, Run run) {
    if constexpr (!PAIRS) {
      run(k, j, count, out);
    } else {
      constexpr long SOME = 128;
      alignas(64) T elements[2 * SOME];
      for (long done = 0; done < count; done += SOME) {
        const long some = count - done < SOME ? count - done : SOME;
        if constexpr (ALONG_K) {
          const long first = 2 * (k + done), have = G::K - first < 2 * some ? G::K - first : 2 * some;
          run(first, j, have, elements);
          if (have < 2 * some) elements[have] = 0;
          join<2>(elements, elements + 1, some, out + done);
        } else {
          run(2 * k, j + done, some, elements);
          if (2 * k + 1 < G::K)
            run(2 * k + 1, j + done, some, elements + SOME);
          else
            memset(elements + SOME, 0, SOME * sizeof(T));
          join<1>(elements, elements + SOME, some, out + done);
        }
      }
    }
  }

  static void pack_rows(const G& g, long batch, long i0, long i1, long k0, long kc, T* out) {
    const auto run = [&](long k, long i, long count, T* to) { g.a_run(batch, i, k, count, to); };
    if constexpr (G::A_ALONG_K)
      for (long i = i0; i < i1; ++i) read<true>(k0, i, kc, out + (i - i0) * G::A_PITCH, run);
    else
      for (long k = 0; k < kc; ++k) read<false>(k0 + k, i0, i1 - i0, out + k * G::A_PITCH, run);
  }

  template <int ROWS, int VECTORS, int COLUMNS>
  static void step(const G& g, long batch, long i, long p, long kc, bool first, bool last, const T* a, const T* b, T* sums) {
    alignas(64) T local[ROWS * VECTORS * W];
    T* tile = K > KC ? sums : local;
    if (G::DIRECT_B && COLUMNS == VECTORS * W)
      micro<T, G::VB, ROWS, VECTORS, A_ROW, A_COLUMN, G::B_ROW_STRIDE, G::AHEAD>(kc, a, b, tile, K > KC && !first);
    else
      micro<T, G::VB, ROWS, VECTORS, A_ROW, A_COLUMN, VECTORS * W, G::AHEAD, VECTORS * W, PAIRS>(kc, a, b, tile, K > KC && !first);
    if (last) g.store(batch, i, ROWS, p * NR, COLUMNS, tile, VECTORS * W);
  }

  // Rows [i0, i1) x panels [p0, p1) of C over one K block. `b`: that block's packed panels; `sums`: the partial sums
  // of all tiles when there are several K blocks.
  static void block(const G& g, long batch, long i0, long i1, long p0, long p1, long k0, long kc, const T* b, T* sums, T* pack) {
    const T* a;
    if constexpr (G::PACK_A) {
      pack_rows(g, batch, i0, i1, k0, kc, pack);
      a = pack;
    } else {
      a = g.a(batch) + i0 * A_ROW + k0 * A_COLUMN;
    }
    const auto tile = [&](long i, long p) {
      const T* rows = a + (i - i0) * A_ROW;
      const T* panel = b + panel_at(p, kc);
      if constexpr (G::DIRECT_B)
        if (p < FULL) panel = g.b(batch) + k0 * G::B_ROW_STRIDE + p * NR;
      T* partial = sums + ((i / MR) * PANELS + p) * TILE;
      const bool first = k0 == 0, last = k0 + kc == K, whole = i + MR <= M;
      if (whole && p < FULL) step<MR, NV, NR>(g, batch, i, p, kc, first, last, rows, panel, partial);
      if constexpr (REST > 0)
        if (whole && p == FULL) step<MR, REST_NV, REST>(g, batch, i, p, kc, first, last, rows, panel, partial);
      if constexpr (REST_MR > 0)
        if (!whole && p < FULL) step<REST_MR, NV, NR>(g, batch, i, p, kc, first, last, rows, panel, partial);
      if constexpr (REST_MR > 0 && REST > 0)
        if (!whole && p == FULL) step<REST_MR, REST_NV, REST>(g, batch, i, p, kc, first, last, rows, panel, partial);
    };
    if constexpr (G::PANEL_OUTER) {
      for (long p = p0; p < p1; ++p)
        for (long i = i0; i < i1; i += MR) tile(i, p);
    } else {
      for (long i = i0; i < i1; i += MR)
        for (long p = p0; p < p1; ++p) tile(i, p);
    }
  }

  static void task(const G& g, long batch, long index, long k0, long kc, const T* b, T* sums, T* pack) {
    const long i0 = index % ROW_BLOCKS * G::MC, p0 = index / ROW_BLOCKS * G::NC;
    const long i1 = i0 + G::MC < M ? i0 + G::MC : M, p1 = p0 + G::NC < PANELS ? p0 + G::NC : PANELS;
    block(g, batch, i0, i1, p0, p1, k0, kc, b, sums, pack);
  }

  template <class Body>
  static GEMM_INLINE void each(long count, Body body) {
    if constexpr (G::DYNAMIC) {
#pragma omp for schedule(dynamic, 1)
      for (long index = 0; index < count; ++index) body(index);
    } else {
#pragma omp for schedule(static)
      for (long index = 0; index < count; ++index) body(index);
    }
  }

  static long depth(long k0) { return K - k0 < KC ? K - k0 : KC; }

  // All of B of one batch point, K block after K block.
  static void pack_all(const G& g, long batch, T* out) {
    for (long k0 = 0; k0 < K; k0 += KC)
      for (long p = G::DIRECT_B ? FULL : 0; p < PANELS; ++p) pack_panel(g, batch, k0, depth(k0), p, out + k0 * STORED);
  }

  // The team shares each batch point: its tiles are the tasks.
  static void run_tiles(const G& g, const T* prepared, T* shared, T* sums, T* pack) {
    const long blocks = (K + KC - 1) / KC, tasks = ROW_BLOCKS * COLUMN_BLOCKS;
    if constexpr (G::STAGED) {  // B is too large to pack at once: one K block at a time
      for (long batch = 0; batch < G::BATCH; ++batch)
        for (long k0 = 0; k0 < K; k0 += KC) {
          const long kc = depth(k0);
          each(PANELS, [&](long p) { pack_panel(g, batch, k0, kc, p, shared); });
          each(tasks, [&](long index) { task(g, batch, index, k0, kc, shared, sums, pack); });
        }
      return;
    }
    for (long batch = 0; batch < G::BATCH; ++batch) {
      if (!G::PREPARED_B && (batch == 0 || G::B_BATCHED))
        each(blocks * PANELS, [&](long index) {
          const long k0 = index / PANELS * KC, p = index % PANELS;
          if (!G::DIRECT_B || p == FULL) pack_panel(g, batch, k0, depth(k0), p, shared + k0 * STORED);
        });
      const T* b = G::PREPARED_B ? prepared + (G::B_BATCHED ? batch * K * WIDTH : 0) : shared;
      each(tasks, [&](long index) {
        for (long k0 = 0; k0 < K; k0 += KC) task(g, batch, index, k0, depth(k0), b + k0 * STORED, sums, pack);
      });
    }
  }

  // Each thread takes whole batch points and packs their B for itself.
  static void run_batch(const G& g, const T* prepared, T* own, T* sums, T* pack) {
    bool packed = false;
    each(G::BATCH, [&](long batch) {
      if (!G::PREPARED_B && (!packed || G::B_BATCHED)) pack_all(g, batch, own);
      packed = true;
      const T* b = G::PREPARED_B ? prepared + (G::B_BATCHED ? batch * K * WIDTH : 0) : own;
      for (long k0 = 0; k0 < K; k0 += KC)
        for (long index = 0; index < ROW_BLOCKS * COLUMN_BLOCKS; ++index)
          task(g, batch, index, k0, depth(k0), b + k0 * STORED, sums, pack);
    });
  }
};

// `prepared`: B packed when the weights loaded. Scratch: B panels and partial sums (one set, or one a thread), A blocks.
template <class G>
static void run(const G& g, const typename G::T* prepared, char* workspace) {
  typedef typename G::T T;
  T* base = aligned<T>(workspace);
#pragma omp parallel num_threads(team_of(G::THREADS)) if (G::THREADS > 1)
  {
    const long thread = omp_get_thread_num();
    T* a = base + thread * G::A_SPACE;
    T* b = base + G::THREADS * G::A_SPACE;
    if constexpr (G::BY_BATCH) {
      T* sums = b + G::THREADS * G::B_SPACE + thread * G::SUM_SPACE;
      Blocked<G>::run_batch(g, prepared, b + thread * G::B_SPACE, sums, a);
    } else {
      Blocked<G>::run_tiles(g, prepared, b, b + G::B_SPACE, a);
    }
  }
}

template <class G>
static void prepare(const G& g, typename G::T* out) {
  for (long batch = 0; batch < (G::B_BATCHED ? G::BATCH : 1); ++batch)
    Blocked<G>::pack_all(g, batch, out + batch * Blocked<G>::K * Blocked<G>::WIDTH);
}

}  // namespace gemm
