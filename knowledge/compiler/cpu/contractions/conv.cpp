// Convolution as a product of packed weights with shifted views of the input. Each task copies a band of one image into
// its own cache, zeros at the borders and columns split by stride phase, so that every tap of every output is one
// contiguous, constant shift away: vectors run over flat pixels and no patch matrix is needed. A transposed convolution
// is one such product for every output phase, each with the taps that reach it; the phases of a row are interleaved
// before they are stored. A Part is a phase in depth and height, its SUBS are the phases along the width.
// G: sizes, choices, and the inlined functions x_run (one input row), weight and store (a run of pixels' epilogue).
namespace conv {

using gemm::vec;

template <class... Sub>
struct Subs {
  static constexpr long COUNT = sizeof...(Sub);
  template <class F>
  static GEMM_INLINE void each(F f) {
    long index = 0;
    (f(Sub{}, index++), ...);
  }
};

template <class G>
struct Conv {
  typedef typename G::T T;
  typedef typename vec<T, G::VB>::type V;
  static constexpr int W = G::VB / sizeof(T), MR = G::MR, NV = G::NV, NR = NV * W;
  static constexpr long TILE = MR * NR, OUT_TILES = (G::OC + MR - 1) / MR, REST_MR = G::OC % MR;
  static constexpr long BLOCKS = (G::IC + G::BLOCK_IC - 1) / G::BLOCK_IC;

  // tile[ROWS][NR] = or += over `channels` input channels and all taps; `x`: the staged input at the tile's first pixel.
  template <class S, int ROWS>
  static void shifted(long channels, const T* a, const T* x, T* tile, bool add) {
    V acc[ROWS][NV];
#pragma GCC unroll 32
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) acc[i][j] = V{};
    for (long c = 0; c < channels; ++c, x += G::CHANNEL_STRIDE) {
#pragma GCC unroll 3
      for (int t = 0; t < S::TAPS; ++t, a += MR) {
        const T* b = x + S::TAP[t];
        V bv[NV];
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) bv[j] = *(const V*)(b + j * W);
#pragma GCC unroll 32
        for (int i = 0; i < ROWS; ++i) {
          const V v = a[i] - V{};
#pragma GCC unroll 8
          for (int j = 0; j < NV; ++j) acc[i][j] += v * bv[j];
        }
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) {
        V* to = (V*)(tile + (i * NV + j) * W);
        *to = add ? *to + acc[i][j] : acc[i][j];
      }
  }

  // Copies the band that outputs from (d0, h0, w0) on read: [channel][phase][depth][row][PITCH].
  static void stage(const G& g, long image, long group, long d0, long h0, long w0, T* out) {
    for (long c = 0; c < G::IC; ++c)
      for (int phase = 0; phase < G::PHASES; ++phase) {
        const long first = w0 * G::IN_STEP_W + G::PHASE_W[phase] - G::LEAD_W;
        const long skip = first < 0 ? (-first + G::IN_STEP_W - 1) / G::IN_STEP_W : 0;
        const long stop = first < G::IN_W ? (G::IN_W - first + G::IN_STEP_W - 1) / G::IN_STEP_W : 0;
        const long begin = skip < G::PITCH ? skip : G::PITCH;
        const long end = stop < begin ? begin : stop < G::PITCH ? stop : G::PITCH;
        for (long d = 0; d < G::STAGE_D; ++d)
          for (long h = 0; h < G::STAGE_H; ++h, out += G::PITCH) {
            const long from_d = (d0 + d) * G::IN_STEP_D + G::PHASE_D[phase] - G::LEAD_D;
            const long from_h = (h0 + h) * G::IN_STEP_H + G::PHASE_H[phase] - G::LEAD_H;
            if (from_d < 0 || from_d >= G::IN_D || from_h < 0 || from_h >= G::IN_H) {
              memset(out, 0, G::PITCH * sizeof(T));
              continue;
            }
            for (long e = 0; e < begin; ++e) out[e] = 0;
            g.x_run(image, group * G::IC + c, from_d, from_h, first + begin * G::IN_STEP_W, end - begin, out + begin);
            for (long e = end; e < G::PITCH; ++e) out[e] = 0;
          }
      }
    memset(out, 0, G::SHARED_ZEROS * sizeof(T));
  }

  // The pixels of a tile, as runs that lie in one output row of one image.
  struct Runs {
    long count;
    long image[NR], row[NR], column[NR], length[NR], at[NR];
  };

  // Pixels [q, q + NR) of `pixels`, numbered with rows `span` apart of which `columns` are real.
  static void find_runs(long q, long span, long rows, long columns, long pixels, Runs& found) {
    const long stop = q + NR < pixels ? q + NR : pixels;
    found.count = 0;
    for (long at = q, row = q / span, column = q % span; at < stop; ++row, column = 0) {
      const long left = stop - at < span - column ? stop - at : span - column;
      const long real = columns - column < left ? columns - column : left;
      if (real > 0) {
        const long r = found.count++;
        found.image[r] = G::PATCHES ? row / rows : 0;
        found.row[r] = G::PATCHES ? row % rows : row;
        found.column[r] = column;
        found.length[r] = real;
        found.at[r] = at - q;
      }
      at += left;
    }
  }

  // panel[channel][tap][NR]: whole vectors are copied; what a run writes too much the next run or row corrects.
  template <class S>
  static void gather_patches(const T* x, long channels, const Runs& runs, T* panel) {
    long from[NR];
    for (long r = 0; r < runs.count; ++r)
      from[r] = runs.image[r] * G::IMAGE_STRIDE + runs.row[r] * G::PITCH + runs.column[r];
    for (long c = 0; c < channels; ++c, x += G::CHANNEL_STRIDE)
      for (int t = 0; t < S::TAPS; ++t, panel += NR)
        for (long r = 0; r < runs.count; ++r) {
          const T* source = x + S::TAP[t] + from[r];
          for (long e = 0; e < runs.length[r]; e += W) *(V*)(panel + runs.at[r] + e) = *(const V*)(source + e);
        }
  }

  struct Place {
    long image, group, d, h, w, rows, columns, pixels;
  };

  // Whole vectors of a run; the last one overlaps, since storing a value twice is harmless and cheaper than a remainder.
  template <class P>
  static GEMM_INLINE void store_run(const G& g, long image, long channel, long d, long h, long w, long count, const T* sums) {
    if (count < W) return g.template store<P, 0>(image, channel, d, h, w, count, sums);
    for (long e = 0; e < count; e += W) {
      const long at = e + W <= count ? e : count - W;
      g.template store<P, W>(image, channel, d, h, w + at, W, sums + at);
    }
  }

  // The epilogue of ROWS output channels: tiles of all phases along the width lie TILE apart.
  template <class P, int ROWS>
  static void finish(const G& g, const Place& at, long out_tile, const T* tile, const Runs& runs) {
    constexpr long S = P::SUBS::COUNT;
    const long channel = at.group * G::OC + out_tile * MR;
    for (int i = 0; i < ROWS; ++i)
      for (long r = 0; r < runs.count; ++r) {
        const T* sums = tile + i * NR + runs.at[r];
        const long column = (at.w + runs.column[r]) * S, left = G::OUT_W - column;
        long count = runs.length[r] * S;
        T mixed[S > 1 ? NR * S : 1];
        if constexpr (S > 1) {
          for (long j = 0; j < runs.length[r]; ++j)
#pragma GCC unroll 4
            for (long s = 0; s < S; ++s) mixed[j * S + s] = sums[s * TILE + j];
          count = count < left ? count : left;
        }
        store_run<P>(g, at.image + runs.image[r], channel + i, at.d, at.h + runs.row[r], column, count, S > 1 ? mixed : sums);
      }
  }

  template <class S, int ROWS>
  static GEMM_INLINE void multiply(long channels, const T* a, const T* x, T* tile, bool add) {
    if constexpr (G::PATCHES)
      gemm::micro<T, G::VB, ROWS, NV, 1, MR, NR, 0>(channels * S::TAPS, a, x, tile, add);
    else
      shifted<S, ROWS>(channels, a, x, tile, add);
  }

  // One tile of pixels over one block of input channels, for the output channels [t0, t1) tiles.
  template <class P>
  static void pixels(const G& g, const Place& at, long q, long c0, long t0, long t1, const T* weights, const T* x, T* sums, T* panel) {
    constexpr long PHASES_W = P::SUBS::COUNT;
    constexpr bool KEPT = BLOCKS > 1 || PHASES_W > 1;
    alignas(64) T local[KEPT ? 1 : TILE];
    const long channels = G::IC - c0 < G::BLOCK_IC ? G::IC - c0 : G::BLOCK_IC;
    Runs runs;
    find_runs(q, G::PATCHES ? at.columns : G::PITCH, at.rows, at.columns, at.pixels, runs);
    const auto done = [&](long t, const T* tile) {
      if (REST_MR == 0 || t + 1 < OUT_TILES) {
        finish<P, MR>(g, at, t, tile, runs);
      } else {
        if constexpr (REST_MR > 0) finish<P, REST_MR>(g, at, t, tile, runs);
      }
    };
    P::SUBS::each([&](auto sub, long phase) {
      typedef decltype(sub) S;
      const T* source = x + c0 * G::CHANNEL_STRIDE;
      if constexpr (G::PATCHES) {
        gather_patches<S>(source, channels, runs, panel);
        source = panel;
      } else {
        source += q;
      }
      for (long t = t0; t < t1; ++t) {
        const T* a = weights + S::WEIGHTS + ((at.group * OUT_TILES + t) * G::IC + c0) * S::TAPS * MR;
        T* tile = KEPT ? sums + ((t - t0) * PHASES_W + phase) * TILE : local;
        if (REST_MR == 0 || t + 1 < OUT_TILES) {
          multiply<S, MR>(channels, a, source, tile, c0 > 0);
        } else {
          if constexpr (REST_MR > 0) multiply<S, REST_MR>(channels, a, source, tile, c0 > 0);
        }
        if (!KEPT) done(t, tile);
      }
    });
    if (KEPT && c0 + channels == G::IC)
      for (long t = t0; t < t1; ++t) done(t, sums + (t - t0) * PHASES_W * TILE);
  }

  template <class P>
  static void band(const G& g, Place at, long images, long t0, long t1, const T* weights, const T* x, T* sums, T* panel) {
    at.pixels = G::PATCHES ? images * at.rows * at.columns : (at.rows - 1) * G::PITCH + at.columns;
    const long tiles = (at.pixels + NR - 1) / NR;
    const auto first = [&](long tile) {  // in place, the last tile steps back, for it must not read past the input
      return G::COPY || tile * NR + NR <= at.pixels ? tile * NR : at.pixels - NR;
    };
    if constexpr (G::CHANNELS_OUTER) {
      for (long c0 = 0; c0 < G::IC; c0 += G::BLOCK_IC)
        for (long tile = 0; tile < tiles; ++tile)
          pixels<P>(g, at, first(tile), c0, t0, t1, weights, x, sums + tile * (t1 - t0) * P::SUBS::COUNT * TILE, panel);
    } else {
      for (long tile = 0; tile < tiles; ++tile)
        for (long c0 = 0; c0 < G::IC; c0 += G::BLOCK_IC)
          pixels<P>(g, at, first(tile), c0, t0, t1, weights, x, sums, panel);
    }
  }

  static void task(const G& g, long index, const T* weights, T* staged, T* sums, T* panel) {
    constexpr long BANDS_W = (G::COUNT_W + G::BAND_W - 1) / G::BAND_W, BANDS_H = (G::COUNT_H + G::BAND_H - 1) / G::BAND_H;
    constexpr long BANDS_D = (G::COUNT_D + G::BAND_D - 1) / G::BAND_D, GROUP_BLOCKS = (G::GROUPS + G::BLOCK_GROUPS - 1) / G::BLOCK_GROUPS;
    constexpr long IMAGE_BLOCKS = (G::BATCH + G::BLOCK_IMAGES - 1) / G::BLOCK_IMAGES;
    const long w0 = index % BANDS_W * G::BAND_W, h0 = index / BANDS_W % BANDS_H * G::BAND_H;
    const long d0 = index / (BANDS_W * BANDS_H) % BANDS_D * G::BAND_D;
    const long rest = index / (BANDS_W * BANDS_H * BANDS_D), image = rest % IMAGE_BLOCKS * G::BLOCK_IMAGES;
    const long g0 = rest / IMAGE_BLOCKS % GROUP_BLOCKS * G::BLOCK_GROUPS;
    const long t0 = rest / IMAGE_BLOCKS / GROUP_BLOCKS * G::BLOCK_OUT;
    const long images = G::BATCH - image < G::BLOCK_IMAGES ? G::BATCH - image : G::BLOCK_IMAGES;
    const long g1 = g0 + G::BLOCK_GROUPS < G::GROUPS ? g0 + G::BLOCK_GROUPS : G::GROUPS;
    const long t1 = t0 + G::BLOCK_OUT < OUT_TILES ? t0 + G::BLOCK_OUT : OUT_TILES;
    for (long group = g0; group < g1; ++group) {
      const T* x = staged;
      if constexpr (G::COPY)
        for (long i = 0; i < images; ++i) stage(g, image + i, group, d0, h0, w0, staged + i * G::IMAGE_STRIDE);
      else
        x = g.x(image, group * G::IC) + d0 * G::DEPTH_STRIDE + h0 * G::PITCH + w0;
      g.parts([&](auto part) {
        typedef decltype(part) P;
        const long depth = P::COUNT_D - d0 < G::BAND_D ? P::COUNT_D - d0 : G::BAND_D;
        const long rows = P::COUNT_H - h0 < G::BAND_H ? P::COUNT_H - h0 : G::BAND_H;
        const long columns = P::COUNT_W - w0 < G::BAND_W ? P::COUNT_W - w0 : G::BAND_W;
        if (rows <= 0 || columns <= 0) return;
        for (long d = 0; d < depth; ++d) {
          const Place at = {image, group, d0 + d, h0, w0, rows, columns, 0};
          band<P>(g, at, images, t0, t1, weights, x + d * G::DEPTH_STRIDE, sums, panel);
        }
      });
    }
  }

  // Weights of one tile of output channels, [channel][tap][MR], for every part.
  static void pack_tile(const G& g, long index, T* weights) {
    const long group = index / OUT_TILES, tile = index % OUT_TILES;
    g.parts([&](auto part) {
      decltype(part)::SUBS::each([&](auto sub, long) {
        typedef decltype(sub) S;
        T* out = weights + S::WEIGHTS + index * G::IC * S::TAPS * MR;
        for (long c = 0; c < G::IC; ++c)
          for (int t = 0; t < S::TAPS; ++t)
            for (int i = 0; i < MR; ++i, ++out) {
              const long channel = tile * MR + i;
              *out = channel < G::OC ? g.weight(group, channel, c, S::TAP_INDEX[t]) : 0;
            }
      });
    });
  }
};

template <class G>
static void prepare(const G& g, typename G::T* out) {
  for (long index = 0; index < G::GROUPS * Conv<G>::OUT_TILES; ++index)
    Conv<G>::pack_tile(g, index, out);
}

// `prepared`: weights packed when they loaded, or null: then they are packed here first.
template <class G>
static void run(const G& g, const typename G::T* prepared, char* workspace) {
  typedef typename G::T T;
  T* packed = gemm::aligned<T>(workspace);
  T* base = packed + G::WEIGHT_SPACE;
#pragma omp parallel num_threads(team_of(G::THREADS)) if (G::THREADS > 1)
  {
    T* staged = base + omp_get_thread_num() * (G::STAGE_SPACE + G::SUM_SPACE + G::PANEL_SPACE);
    T *sums = staged + G::STAGE_SPACE, *panel = sums + G::SUM_SPACE;
    if constexpr (!G::PREPARED) {
#pragma omp for schedule(static)
      for (long index = 0; index < G::GROUPS * Conv<G>::OUT_TILES; ++index)
        Conv<G>::pack_tile(g, index, packed);
    }
    const T* weights = G::PREPARED ? prepared : packed;
    if constexpr (G::DYNAMIC) {
#pragma omp for schedule(dynamic, 1)
      for (long index = 0; index < G::TASKS; ++index) Conv<G>::task(g, index, weights, staged, sums, panel);
    } else {
#pragma omp for schedule(static)
      for (long index = 0; index < G::TASKS; ++index) Conv<G>::task(g, index, weights, staged, sums, panel);
    }
  }
}

}  // namespace conv
