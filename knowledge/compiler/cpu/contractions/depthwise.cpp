// Depthwise convolution of an input whose channels lie side by side: vectors run over channels, and a tile is some pixels
// of a row. A task walks down a band of one image and keeps the input rows that the taps of one output row read in a ring
// of its own, zeros at the borders, so that every tap is a constant distance away whatever the element's type in memory.
// G: sizes, choices, and the inlined functions x_run, weight and store (runs of channels).
namespace depthwise {

template <class G>
struct Depthwise {
  typedef typename G::T T;
  typedef typename gemm::vec<T, G::VB>::type V;
  static constexpr int W = G::VB / sizeof(T), NP = G::NP, NV = G::NV;
  static constexpr long BLOCK = NV * W, TAPS = G::TAPS_H * G::TAPS_W, BLOCKS = (G::CHANNELS + BLOCK - 1) / BLOCK;
  static constexpr long TASK_BLOCKS = G::BLOCK_CHANNELS / BLOCK, GROUPS = (BLOCKS + TASK_BLOCKS - 1) / TASK_BLOCKS;
  static constexpr long STAGED = TASK_BLOCKS * BLOCK < G::CHANNELS ? TASK_BLOCKS * BLOCK : G::CHANNELS;  // channels
  static constexpr long RING = (G::TAPS_H - 1) * G::DILATION_H + 1, PITCH = G::STAGE_W * STAGED;

  // Where `count` channels from `first` on are read: the last ones step back, and store only what is their own.
  static long begin(long first, long count) { return first + count <= G::CHANNELS ? first : G::CHANNELS - count; }

  // sums[NP][BLOCK] of the pixels whose first tap is at `at` in each of `rows`.
  static GEMM_INLINE void tile(const T* const* rows, long at, const T* weights, T* sums) {
    V acc[NP][NV];
#pragma GCC unroll 32
    for (int p = 0; p < NP; ++p)
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[p][v] = V{};
    for (long h = 0; h < G::TAPS_H; ++h) {
      const T* from = rows[h] + at;
      for (long w = 0; w < G::TAPS_W; ++w, from += G::DILATION_W * STAGED, weights += BLOCK) {
        V tap[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) tap[v] = *(const V*)(weights + v * W);
#pragma GCC unroll 32
        for (int p = 0; p < NP; ++p)
#pragma GCC unroll 8
          for (int v = 0; v < NV; ++v) acc[p][v] += tap[v] * *(const V*)(from + p * G::STRIDE_W * STAGED + v * W);
      }
    }
#pragma GCC unroll 32
    for (int p = 0; p < NP; ++p)
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) *(V*)(sums + p * BLOCK + v * W) = acc[p][v];
  }

  // One input row from the first tap of column w0 on: [position][STAGED].
  static void stage(const G& g, long image, long channel, long h, long w0, T* out) {
    if (h < 0 || h >= G::IN_H) {
      memset(out, 0, PITCH * sizeof(T));
      return;
    }
    const long first = w0 * G::STRIDE_W - G::PADDING_W;
    const long begin = first < 0 ? (-first < G::STAGE_W ? -first : G::STAGE_W) : 0;
    const long stop = G::IN_W - first < G::STAGE_W ? G::IN_W - first : G::STAGE_W, end = stop < begin ? begin : stop;
    memset(out, 0, begin * STAGED * sizeof(T));
    for (long at = begin; at < end; ++at) g.template x_run<STAGED>(image, channel, h, first + at, out + at * STAGED);
    memset(out + end * STAGED, 0, (G::STAGE_W - end) * STAGED * sizeof(T));
  }

  struct Place {
    long image, h, w, columns;
  };

  // The pixels of one output row for one block of channels, staged from `channel` on.
  static void row(const G& g, const Place& at, long block, long channel, const T* const* rows, const T* weights) {
    alignas(64) T sums[NP * BLOCK];
    const long first = begin(block * BLOCK, BLOCK), skip = block * BLOCK - first;
    for (long w = 0; w < at.columns; w += NP) {
      tile(rows, w * G::STRIDE_W * STAGED + first - channel, weights + block * TAPS * BLOCK, sums);
      const long pixels = at.columns - w < NP ? at.columns - w : NP;
      for (long p = 0; p < pixels; ++p)
        if (skip == 0)
          g.template store<BLOCK>(at.image, first, at.h, at.w + w + p, BLOCK, sums + p * BLOCK);
        else
          g.template store<0>(at.image, first + skip, at.h, at.w + w + p, BLOCK - skip, sums + p * BLOCK + skip);
    }
  }

  static void task(const G& g, long index, const T* weights, T* ring) {
    constexpr long BANDS_W = (G::OUT_W + G::BAND_W - 1) / G::BAND_W, BANDS_H = (G::OUT_H + G::BAND_H - 1) / G::BAND_H;
    const long group = index % GROUPS, w0 = index / GROUPS % BANDS_W * G::BAND_W;
    const long h0 = index / (GROUPS * BANDS_W) % BANDS_H * G::BAND_H, image = index / (GROUPS * BANDS_W * BANDS_H);
    const long h1 = G::OUT_H - h0 < G::BAND_H ? G::OUT_H : h0 + G::BAND_H;
    const long columns = G::OUT_W - w0 < G::BAND_W ? G::OUT_W - w0 : G::BAND_W;
    const long b0 = group * TASK_BLOCKS, b1 = b0 + TASK_BLOCKS < BLOCKS ? b0 + TASK_BLOCKS : BLOCKS;
    const long channel = begin(b0 * BLOCK, STAGED);
    const T* rows[G::TAPS_H];
    long staged = 0;  // rows below the first tap of output row 0 that have been in the ring
    for (long h = h0; h < h1; ++h) {
      const long top = h * G::STRIDE_H;
      for (long r = staged > top ? staged : top; r < top + RING; ++r)
        stage(g, image, channel, r - G::PADDING_H, w0, ring + r % RING * PITCH);
      staged = top + RING;
      for (long t = 0; t < G::TAPS_H; ++t) rows[t] = ring + (top + t * G::DILATION_H) % RING * PITCH;
      for (long block = b0; block < b1; ++block) row(g, {image, h, w0, columns}, block, channel, rows, weights);
    }
  }

  // Weights of one block of channels, [tap][BLOCK].
  static void pack(const G& g, long block, T* out) {
    for (long tap = 0; tap < TAPS; ++tap)
      for (long e = 0; e < BLOCK; ++e) out[(block * TAPS + tap) * BLOCK + e] = g.weight(begin(block * BLOCK, BLOCK) + e, tap);
  }
};

template <class G>
static void prepare(const G& g, typename G::T* out) {
  for (long block = 0; block < Depthwise<G>::BLOCKS; ++block) Depthwise<G>::pack(g, block, out);
}

// `prepared`: weights packed when they loaded, or null: then they are packed here first.
template <class G>
static void run(const G& g, const typename G::T* prepared, char* workspace) {
  typedef typename G::T T;
  T* packed = gemm::aligned<T>(workspace);
#pragma omp parallel num_threads(team_of(G::THREADS)) if (G::THREADS > 1)
  {
    T* staged = packed + G::WEIGHT_SPACE + omp_get_thread_num() * G::STAGE_SPACE;
    if constexpr (!G::PREPARED) {
#pragma omp for schedule(static)
      for (long block = 0; block < Depthwise<G>::BLOCKS; ++block) Depthwise<G>::pack(g, block, packed);
    }
    const T* weights = G::PREPARED ? prepared : packed;
    if constexpr (G::DYNAMIC) {
#pragma omp for schedule(dynamic, 1)
      for (long index = 0; index < G::TASKS; ++index) Depthwise<G>::task(g, index, weights, staged);
    } else {
#pragma omp for schedule(static)
      for (long index = 0; index < G::TASKS; ++index) Depthwise<G>::task(g, index, weights, staged);
    }
  }
}

}  // namespace depthwise
