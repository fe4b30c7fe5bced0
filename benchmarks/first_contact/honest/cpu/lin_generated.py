"""Linear + SiLU: a Python generator writes the micro kernel, one line of C per register.

The compiler kept spilling accumulators out of my loop nests, so nothing is left to it here:
6 x 16 accumulators have names, the loop over k is written four times.
"""
import ctypes
import itertools
import subprocess
import tempfile
import textwrap
from string import Template

import torch
import torch.nn as nn

MR, NR, UNROLL = 6, 16, 4


def emit_kernel(mr):
    """Yields the lines of `k{mr}`: y[mr][16] = silu(x[mr][:] @ pack + bias)."""
    yield f"static void k{mr}(const float *restrict x, long lda, const float *restrict b, const float *restrict bias, float *restrict y, long ldc, long K) {{"
    for r, h in itertools.product(range(mr), range(2)):
        yield f"  __m256 c{r}{h} = _mm256_setzero_ps();"
    yield "  __m256 b0, b1, s;"
    yield "  long k = 0;"

    def step(u):
        yield f"    b0 = _mm256_load_ps(b + {u * NR}); b1 = _mm256_load_ps(b + {u * NR + 8});"
        for r in range(mr):
            yield f"    s = _mm256_broadcast_ss(x + {r} * lda + k + {u}); c{r}0 = _mm256_fmadd_ps(s, b0, c{r}0); c{r}1 = _mm256_fmadd_ps(s, b1, c{r}1);"

    yield f"  for (; k + {UNROLL} <= K; k += {UNROLL}) {{"
    for u in range(UNROLL):
        yield from step(u)
    yield f"    b += {UNROLL * NR};"
    yield "  }"
    yield "  for (; k < K; ++k) {"
    yield from step(0)
    yield f"    b += {NR};"
    yield "  }"
    yield "  b0 = _mm256_loadu_ps(bias); b1 = _mm256_loadu_ps(bias + 8);"
    for r, h in itertools.product(range(mr), range(2)):
        yield f"  _mm256_storeu_ps(y + {r} * ldc + {8 * h}, _mm256_add_ps(c{r}{h}, b{h}));"
    yield "}"


FRAME = Template(r"""
#define _GNU_SOURCE
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

$kernels

static float *arena; static size_t arena_bytes;
static float *scratch(size_t bytes) {
  if (bytes > arena_bytes) {
    if (arena) munmap(arena, arena_bytes);
    size_t want = (bytes + (2u << 20) - 1) & ~(size_t)((2u << 20) - 1);
    arena = mmap(0, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED) { arena = 0; arena_bytes = 0; return 0; }
    madvise(arena, want, MADV_HUGEPAGE);
    arena_bytes = want;
  }
  return arena;
}

int linear_silu(const float *x, const float *w, const float *bias, float *y, long M, long K, long N, int nt) {
  if (N % $nr) return 1;
  float *pack = scratch(sizeof(float) * K * N);   /* packed anew in every call: 0.1 ms, and never stale */
  if (!pack) return 2;
  #pragma omp parallel num_threads(nt)
  {
    #pragma omp for schedule(static)
    for (long n = 0; n < N / $nr; ++n)
      for (long k = 0; k < K; ++k)
        for (long c = 0; c < $nr; ++c) pack[n * $nr * K + k * $nr + c] = w[(n * $nr + c) * K + k];
    #pragma omp for schedule(static)
    for (long m = 0; m < (M + $mr - 1) / $mr; ++m) {
      const long i = m * $mr, left = M - i;
      for (long n = 0; n < N; n += $nr) {
        const float *px = x + i * K, *pb = pack + n * K; float *py = y + i * N + n;
        if (left >= $mr) k$mr(px, K, pb, bias + n, py, N, K);
        else for (long r = 0; r < left; ++r) k1(px + r * K, K, pb, bias + n, py + r * N, N, K);
      }
      for (long r = 0; r < (left < $mr ? left : $mr); ++r) {
        float *row = y + (i + r) * N;
        for (long j = 0; j < N; ++j) row[j] = row[j] / (1.f + expf(-row[j]));
      }
    }
  }
  return 0;
}
""")


def make():
    kernels = "\n".join(itertools.chain(emit_kernel(MR), emit_kernel(1)))
    text = FRAME.substitute(kernels=kernels, nr=NR, mr=MR)
    folder = tempfile.mkdtemp(prefix="gen")
    path = f"{folder}/gen.c"
    with open(path, "w") as f:
        f.write(textwrap.dedent(text))
    subprocess.run(f"gcc -std=gnu11 -O2 -ftree-vectorize -mavx2 -mfma -fopenmp -fPIC -shared -o {folder}/gen.so {path} -lm",
                   shell=True, check=True)
    return ctypes.CDLL(f"{folder}/gen.so").linear_silu


linear_silu = make()


class ModelNew(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.fc = nn.Linear(fin, fout)

    def forward(self, x):
        x = x.contiguous()
        w = self.fc.weight.contiguous()
        y = x.new_empty(x.shape[0], w.shape[0])
        ptr = [ctypes.c_void_p(t.data_ptr()) for t in (x, w, self.fc.bias, y)]
        dims = [ctypes.c_long(d) for d in (x.shape[0], x.shape[1], w.shape[0])]
        code = linear_silu(*ptr, *dims, torch.get_num_threads())
        if code:
            raise RuntimeError(f"linear_silu: code {code}")
        return y
