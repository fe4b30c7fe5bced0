// One recurrent layer, step by step: a team of threads shares the units, each with its panels of weights in its caches;
// one barrier a step. G: sizes, choices, what cells read, and the inlined store.
namespace recurrence {

template <class G>
struct Walk {
  typedef typename G::T T;
  static constexpr int W = G::VB / sizeof(T), GATES = G::GATES;
  static constexpr long PANELS = (G::HIDDEN + W - 1) / W, PITCH = PANELS * W, PANEL = G::HIDDEN * GATES * W;
  static constexpr long SLICES = (G::BATCH + G::SLICE - 1) / G::SLICE, TASKS = G::DIRECTIONS * PANELS * SLICES;
  static constexpr long STATES = G::DIRECTIONS * G::BATCH * PITCH;
  typedef T V __attribute__((vector_size(G::VB)));

  struct Memory {
    T *weights, *h, *c;
  };

  // A panel of weights lies as the inner loop reads it: for each column all gates of W units.
  template <int D>
  static void pack(const G& g, long panel, T* to) {
    for (long k = 0; k < G::HIDDEN; ++k)
      for (long gate = 0; gate < GATES; ++gate)
        for (long l = 0; l < W; ++l) {
          const long unit = panel * W + l;
          to[(k * GATES + gate) * W + l] = unit < G::HIDDEN ? g.template weight<D>(gate * G::HIDDEN + unit, k) : (T)0;
        }
  }

  template <int D>
  static void begin(const G& g, long row, const Memory& m) {
    for (long unit = 0; unit < PITCH; ++unit) {
      const bool is_there = unit < G::HIDDEN;
      m.h[(D * G::BATCH + row) * PITCH + unit] = is_there ? g.template first_h<D>(row, unit) : (T)0;
      m.c[(D * G::BATCH + row) * PITCH + unit] = is_there ? g.template first_c<D>(row, unit) : (T)0;
    }
  }

  // A step of ROWS sequences and the W units of a panel.
  template <int D, int ROWS>
  static void tile(const G& g, long panel, long row, long step, bool is_last, const T* h, T* next, T* c, const T* weights) {
    V sums[ROWS][GATES];
    for (int r = 0; r < ROWS; ++r)
      for (int gate = 0; gate < GATES; ++gate) sums[r][gate] = V{};
    for (long k = 0; k < G::HIDDEN; ++k) {
      V w[GATES];
      for (int gate = 0; gate < GATES; ++gate) std::memcpy(&w[gate], weights + (k * GATES + gate) * W, G::VB);
      for (int r = 0; r < ROWS; ++r) {
        const V x = h[(row + r) * PITCH + k] - V{};
        for (int gate = 0; gate < GATES; ++gate) sums[r][gate] += w[gate] * x;
      }
    }
    const long first = panel * W, count = G::HIDDEN - first < W ? G::HIDDEN - first : W;
    for (int r = 0; r < ROWS; ++r) {
      alignas(64) T own[GATES][W], given[GATES][W];
      std::memcpy(own, sums[r], sizeof(own));
      if (count < W) std::memset(given, 0, sizeof(given));
      for (int gate = 0; gate < GATES; ++gate) {
#pragma omp simd
        for (long l = 0; l < count; ++l) {
          const long at = gate * G::HIDDEN + first + l;
          given[gate][l] = g.template given<D>(step, row + r, at);
          own[gate][l] += g.template bias<D>(at);
        }
      }
      T* const to = next + (row + r) * PITCH + first;
      T* const kept = c + (row + r) * PITCH + first;
#pragma omp simd
      for (long l = 0; l < W; ++l) to[l] = G::cell(own, given, l, h[(row + r) * PITCH + first + l], kept[l]);
      g.template store<D>(step, row + r, first, count, to);
      if (is_last) g.template last<D>(row + r, first, count, to, kept);
    }
  }

  template <int D, int ROWS>
  static void rows(const G& g, long panel, long begin, long end, long step, bool is_last, const T* h, T* next, T* c, const T* weights) {
    long row = begin;
    for (; row + ROWS <= end; row += ROWS) tile<D, ROWS>(g, panel, row, step, is_last, h, next, c, weights);
    if constexpr (ROWS > 1)
      if (row < end) rows<D, ROWS / 2>(g, panel, row, end, step, is_last, h, next, c, weights);
  }

  template <int D>
  static void task(const G& g, long panel, long slice, long walked, const Memory& m) {
    const long step = D ? G::STEPS - 1 - walked : walked, begin = slice * G::SLICE;
    const long end = begin + G::SLICE < G::BATCH ? begin + G::SLICE : G::BATCH, at = D * G::BATCH * PITCH;
    const T* const h = m.h + walked % 2 * STATES + at;
    T* const next = m.h + (walked + 1) % 2 * STATES + at;
    rows<D, G::ROWS>(g, panel, begin, end, step, walked == G::STEPS - 1, h, next, m.c + at, m.weights + (D * PANELS + panel) * PANEL);
  }

  static void run(const G& g, char* workspace) {
    Memory m;
    m.weights = (T*)(((uintptr_t)workspace + 63) & ~(uintptr_t)63);
    m.h = m.weights + G::DIRECTIONS * PANELS * PANEL;
    m.c = m.h + 2 * STATES;
#pragma omp parallel num_threads(team_of(G::THREADS)) if (G::THREADS > 1)
    {
#pragma omp for schedule(static) nowait
      for (long i = 0; i < G::DIRECTIONS * PANELS; ++i) {
        T* const to = m.weights + i * PANEL;
        if (i < PANELS) pack<0>(g, i, to);
        else pack<G::DIRECTIONS - 1>(g, i - PANELS, to);
      }
#pragma omp for schedule(static)
      for (long i = 0; i < G::DIRECTIONS * G::BATCH; ++i) {
        if (i < G::BATCH) begin<0>(g, i, m);
        else begin<G::DIRECTIONS - 1>(g, i - G::BATCH, m);
      }
      for (long walked = 0; walked < G::STEPS; ++walked) {
#pragma omp for schedule(static)
        for (long i = 0; i < TASKS; ++i) {
          const long cell = i / SLICES, slice = i % SLICES;
          if (cell < PANELS) task<0>(g, cell, slice, walked, m);
          else task<G::DIRECTIONS - 1>(g, cell - PANELS, slice, walked, m);
        }
      }
    }
  }
};

template <class G>
void run(const G& g, char* workspace) {
  Walk<G>::run(g, workspace);
}

}  // namespace recurrence
