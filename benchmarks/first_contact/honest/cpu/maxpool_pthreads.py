import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <pthread.h>
#include <math.h>
#include <stdlib.h>

struct job { const float *x; float *y; int first, last, H, W, OH, OW; };

/* "v > m || v != v": a NaN wins, and once m is NaN no comparison replaces it */
static void *work(void *arg)
{
    const struct job *j = arg;
    for (int p = j->first; p < j->last; p++) {
        const float *x = j->x + (size_t)p * j->H * j->W;
        float *y = j->y + (size_t)p * j->OH * j->OW;
        for (int oy = 0; oy < j->OH; oy++) {
            int y0 = oy * 2 - 1, y1 = y0 + 3;
            if (y0 < 0) y0 = 0;
            if (y1 > j->H) y1 = j->H;
            for (int ox = 0; ox < j->OW; ox++) {
                int x0 = ox * 2 - 1, x1 = x0 + 3;
                if (x0 < 0) x0 = 0;
                if (x1 > j->W) x1 = j->W;
                float m = -INFINITY;
                for (int a = y0; a < y1; a++)
                    for (int b = x0; b < x1; b++) {
                        float v = x[a * j->W + b];
                        if (v > m || v != v) m = v;
                    }
                y[oy * j->OW + ox] = m;
            }
        }
    }
    return NULL;
}

int maxpool(const float *x, float *y, int planes, int H, int W, int threads)
{
    int OH = (H - 1) / 2 + 1, OW = (W - 1) / 2 + 1;
    if (threads > 64) threads = 64;
    if (threads < 1) threads = 1;
    pthread_t id[64];
    struct job jobs[64];
    char started[64] = {0};
    for (int t = 0; t < threads; t++) {
        jobs[t] = (struct job){x, y, (int)((long)planes * t / threads), (int)((long)planes * (t + 1) / threads), H, W, OH, OW};
        if (t && !pthread_create(&id[t], NULL, work, &jobs[t])) started[t] = 1;
        else if (t) work(&jobs[t]);           /* no thread to be had: do it here */
    }
    work(&jobs[0]);
    for (int t = 1; t < threads; t++) if (started[t]) pthread_join(id[t], NULL);
    return 0;
}
"""

THREADS = int(os.environ.get("OMP_NUM_THREADS", "0") or 0) or os.cpu_count() or 1


def make():
    d = tempfile.mkdtemp(prefix="maxpool")
    with open(d + "/maxpool.c", "w") as f:
        f.write(SRC)
    subprocess.check_call(["cc", "-O2", "-march=native", "-pthread", "-shared", "-fPIC", "-o", d + "/maxpool.so", d + "/maxpool.c"])
    return ctypes.CDLL(d + "/maxpool.so")


class ModelNew(nn.Module):
    lib = None

    def forward(self, x):
        if ModelNew.lib is None:
            ModelNew.lib = make()
        x = x.contiguous()
        n, c, h, w = x.shape
        y = torch.empty((n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1), dtype=torch.float32)
        self.lib.maxpool(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), n * c, h, w, min(THREADS, n * c))
        return y
