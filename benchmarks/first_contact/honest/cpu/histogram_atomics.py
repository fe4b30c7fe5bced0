"""Two histograms per row in one sweep. Rows are split further, so that few rows still use every core: atomics join the parts."""
import atexit
import ctypes
import logging
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

log = logging.getLogger(__name__)

SOURCE = """
#include <cstdint>
#include <cstring>
#include <omp.h>

extern "C" int histogram(const int64_t* codes, const float* weights, int64_t* counts, double* wide, float* sums,
                         int64_t rows, int64_t cols, int64_t bins) {
    int bad = 0;
    std::memset(counts, 0, sizeof(int64_t) * rows * bins);
    std::memset(wide, 0, sizeof(double) * rows * bins);
    #pragma omp parallel for collapse(2) schedule(dynamic, 1)
    for (int64_t r = 0; r < rows; ++r)
        for (int part = 0; part < 2; ++part) {
            const int64_t lo = cols * part / 2, hi = cols * (part + 1) / 2;
            for (int64_t i = r * cols + lo; i < r * cols + hi; ++i) {
                const int64_t c = codes[i];
                if (c < 0 || c >= bins) {
                    #pragma omp atomic write
                    bad = 1;
                    continue;
                }
                #pragma omp atomic update
                counts[r * bins + c] += 1;
                #pragma omp atomic update
                wide[r * bins + c] += weights[i];
            }
        }
    #pragma omp parallel for simd
    for (int64_t i = 0; i < rows * bins; ++i) sums[i] = (float)wide[i];
    return bad;
}
"""


def _compile() -> ctypes.CDLL:
    where = Path(tempfile.mkdtemp(prefix="hist-"))
    atexit.register(shutil.rmtree, where, True)
    source = where / "histogram.cpp"
    source.write_text(SOURCE)
    target = source.with_suffix(".so")
    command = ["g++", "-O2", "-fopenmp", "-shared", "-fPIC", str(source), "-o", str(target)]
    log.info("running %s", " ".join(command))
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(target))


class ModelNew(torch.nn.Module):
    BINS = 128
    _library = None

    @classmethod
    def library(cls) -> ctypes.CDLL:
        if cls._library is None:
            cls._library = _compile()
        return cls._library

    def forward(self, codes, weights):
        codes, weights = codes.contiguous(), weights.contiguous()
        rows, cols = codes.shape
        counts = torch.empty((rows, self.BINS), dtype=torch.int64)
        wide = torch.empty((rows, self.BINS), dtype=torch.float64)
        sums = torch.empty((rows, self.BINS))
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (codes, weights, counts, wide, sums)]
        if self.library().histogram(*pointers, *map(ctypes.c_int64, (rows, cols, self.BINS))):
            raise IndexError("code outside of the histogram")
        return counts, sums
