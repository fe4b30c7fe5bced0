"""float64 weighted cumsum, pthreads made and joined in every call (two of them cost 40 us, the sum takes 500)."""
import ctypes
import os
import shlex
import subprocess
import tempfile
import weakref

import torch
from torch import nn

PIECES = []


def piece(text):
    PIECES.append(text)
    return text


piece(r"""
#include <pthread.h>
#include <stddef.h>
#include <alloca.h>
#define MAX(a, b) ({ __typeof__(a) _a = (a); __typeof__(b) _b = (b); _a > _b ? _a : _b; })
struct part { const double *x, *w; double *y; long lo, hi, n; pthread_t id; };
""")
piece(r"""
static void *strip(void *arg)
{
    struct part *p = arg;
    long i = p->lo;
    /* four rows at once: the chain of additions of one row alone is latency bound */
    for (; i + 4 <= p->hi; i += 4) {
        const double *x0 = p->x + i * p->n, *x1 = x0 + p->n, *x2 = x1 + p->n, *x3 = x2 + p->n;
        double *y0 = p->y + i * p->n, *y1 = y0 + p->n, *y2 = y1 + p->n, *y3 = y2 + p->n;
        double a = 0, b = 0, c = 0, d = 0;
        for (long j = 0; j < p->n; ++j) {
            const double w = p->w[j];
            __builtin_prefetch(x0 + j + 64); __builtin_prefetch(x1 + j + 64);
            y0[j] = a += x0[j] * w; y1[j] = b += x1[j] * w; y2[j] = c += x2[j] * w; y3[j] = d += x3[j] * w;
        }
    }
    for (; i < p->hi; ++i) {
        double a = 0;
        for (long j = 0; j < p->n; ++j) p->y[i * p->n + j] = a += p->x[i * p->n + j] * p->w[j];
    }
    return NULL;
}
""")
piece(r"""
int wcumsum(const double *x, const double *w, double *y, long rows, long n, int threads)
{
    threads = MAX(1, threads);
    struct part *part = alloca(sizeof *part * threads);
    int failed = 0;
    for (int t = 0; t < threads; ++t) {
        part[t] = (struct part){x, w, y, rows * t / threads, rows * (t + 1) / threads, n, 0};
        if (t && pthread_create(&part[t].id, NULL, strip, &part[t])) { strip(&part[t]); part[t].id = 0; ++failed; }
    }
    strip(&part[0]);
    for (int t = 1; t < threads; ++t) if (part[t].id) pthread_join(part[t].id, NULL);
    return failed;
}
""")


class Library:
    """Owns the file; the folder goes away with the last user."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        out = os.path.join(self.folder.name, "w.so")
        line = f"gcc -std=gnu17 -O2 -march=haswell -ffp-contract=off -pthread -fPIC -shared -x c - -o {shlex.quote(out)}"
        subprocess.run(shlex.split(line), input="".join(PIECES).encode(), check=True)
        self.call = ctypes.CDLL(out)["wcumsum"]
        self.call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2 + [ctypes.c_int]


_known = weakref.WeakValueDictionary()


def library():
    found = _known.get("w")
    if found is None:
        _known["w"] = found = Library()
    return found


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width, dtype=torch.float64))
        self.lib = library()

    def forward(self, x):
        x = x.contiguous()
        w = self.weight.contiguous()
        y = torch.empty_like(x)
        self.lib.call(x.data_ptr(), w.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], torch.get_num_threads())
        return y
