"""Prefix sums in two passes over blocks of a fixed size, on a pool of its own threads that sleep on a futex.
No OpenMP. The pool notices a fork by the process id and starts over."""
import ctypes
import hashlib
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import nn

SRC = r"""
#include <atomic>
#include <cstdint>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {
void sleep_on(std::atomic<uint32_t>& word, uint32_t old) { syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0); }
void wake(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }

struct Pool {
    std::atomic<uint32_t> epoch{0}, done{0};
    std::atomic<int64_t> next{0};
    void (*body)(void*, int64_t) = nullptr;
    void* argument = nullptr;
    int64_t count = 0;
    int workers;

    explicit Pool(int n) : workers(n) {
        for (int i = 0; i < n; ++i) std::thread([this] { serve(); }).detach();   // live as long as the process
    }
    void drain() { for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(argument, i); }
    void serve() {
        uint32_t seen = 0;
        for (;;) {
            while (epoch.load(std::memory_order_acquire) == seen) sleep_on(epoch, seen);
            seen = epoch.load(std::memory_order_acquire);
            drain();
            if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == (uint32_t)workers) wake(done);
        }
    }
    void run(int64_t n, void (*f)(void*, int64_t), void* a) {
        body = f; argument = a; count = n;
        next.store(0, std::memory_order_relaxed);
        done.store(0, std::memory_order_relaxed);
        epoch.fetch_add(1, std::memory_order_release);
        wake(epoch);
        drain();
        for (uint32_t d; (d = done.load(std::memory_order_acquire)) != (uint32_t)workers;) sleep_on(done, d);
    }
};

Pool* pool_for(int threads) {
    static Pool* pools[65];
    static pid_t owner = 0;
    if (owner != getpid()) { for (auto& p : pools) p = nullptr; owner = getpid(); }
    int n = threads < 1 ? 0 : threads > 64 ? 63 : threads - 1;
    if (!pools[n]) pools[n] = new Pool(n);
    return pools[n];
}

constexpr int64_t BLOCK = 8192;
struct Job { const float* x; float* y; double* total; int64_t length, blocks; };

void sums(void* a, int64_t i) {
    Job& j = *(Job*)a;
    int64_t row = i / j.blocks, from = i % j.blocks * BLOCK, to = from + BLOCK < j.length ? from + BLOCK : j.length;
    const float* x = j.x + row * j.length;
    double s[8] = {};
    int64_t c = from;
    for (; c + 8 <= to; c += 8) for (int l = 0; l < 8; ++l) s[l] += x[c + l];
    for (; c < to; ++c) s[0] += x[c];
    j.total[i] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}
void scan(void* a, int64_t i) {
    Job& j = *(Job*)a;
    int64_t row = i / j.blocks, from = i % j.blocks * BLOCK, to = from + BLOCK < j.length ? from + BLOCK : j.length;
    double s = j.total[i];
    const float* x = j.x + row * j.length;
    float* y = j.y + row * j.length;
    for (int64_t c = from; c < to; ++c) y[c] = (float)(s += x[c]);
}
}

extern "C" void cumsum(const float* x, float* y, int64_t rows, int64_t length, int threads) {
    if (!rows || !length) return;
    Job job{x, y, nullptr, length, (length + BLOCK - 1) / BLOCK};
    static std::vector<double> total;                  // one call at a time: the interpreter's lock is not released (PyDLL)
    total.resize(rows * job.blocks);
    job.total = total.data();
    Pool* pool = pool_for(threads);
    pool->run(rows * job.blocks, sums, &job);
    for (int64_t r = 0; r < rows; ++r) {
        double s = 0;
        for (int64_t b = 0; b < job.blocks; ++b) { double t = total[r * job.blocks + b]; total[r * job.blocks + b] = s; s += t; }
    }
    pool->run(rows * job.blocks, scan, &job);
}
"""


def compiled(source: str) -> ctypes.PyDLL:
    name = hashlib.sha1(source.encode()).hexdigest()[:12]
    folder = Path(tempfile.mkdtemp(prefix=name))
    (folder / "scan.cpp").write_text(source)
    subprocess.run(f"g++ -std=c++17 -O3 -march=native -pthread -fPIC -shared scan.cpp -o scan.so", shell=True,
                   cwd=folder, check=True)
    return ctypes.PyDLL(str(folder / "scan.so"))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.run = compiled(SRC).cumsum
        self.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int]
        self.run.restype = None

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        self.run(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], torch.get_num_threads())
        return y
