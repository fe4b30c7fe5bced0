"""Batched A B^T on a pool of std::threads that sleep on a condition variable between calls."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP = r"""
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

class Pool {
  std::mutex m; std::condition_variable wake, done; std::vector<std::thread> threads;
  std::function<void(long)> job; std::atomic<long> next{0}; long jobs = 0, generation = 0; int busy = 0; bool stop = false;
  void drain() { for (long i; (i = next.fetch_add(1)) < jobs;) job(i); }
  void work() {
    long seen = 0;
    for (;;) {
      { std::unique_lock<std::mutex> l(m); wake.wait(l, [&] { return stop || generation != seen; }); if (stop) return; seen = generation; }
      drain();
      { std::lock_guard<std::mutex> l(m); if (--busy == 0) done.notify_one(); }
    }
  }
 public:
  explicit Pool(int n) { for (int i = 0; i < n; ++i) threads.emplace_back([this] { work(); }); }
  ~Pool() { { std::lock_guard<std::mutex> l(m); stop = true; } wake.notify_all(); for (auto& t : threads) t.join(); }
  void run(long n, std::function<void(long)> f) {
    { std::lock_guard<std::mutex> l(m); job = std::move(f); jobs = n; next = 0; busy = (int)threads.size(); ++generation; }
    wake.notify_all();
    drain();
    std::unique_lock<std::mutex> l(m);
    done.wait(l, [&] { return busy == 0; });
  }
};

extern "C" void* pool_new(int n) { return new Pool(n); }
extern "C" void pool_delete(void* p) { delete static_cast<Pool*>(p); }
extern "C" void bmm_nt(void* p, const float* a, const float* b, float* y, long B, long N, long M, long K, long sa, long ra) {
  static_cast<Pool*>(p)->run(B * N, [=](long i) {
    const float* u = a + (i / N) * sa + (i % N) * ra;
    for (long j = 0; j < M; ++j) {
      const float* v = b + ((i / N) * M + j) * K; float l[8] = {};
      for (long k = 0; k < K; k += 8) for (int t = 0; t < 8; ++t) l[t] += u[k + t] * v[k + t];
      y[i * M + j] = 0.125f * (l[0] + l[1] + l[2] + l[3] + l[4] + l[5] + l[6] + l[7]);
    }
  });
}
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        so = tempfile.mkdtemp() + "/pool.so"
        subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-pthread", "-shared", "-fPIC", "-x", "c++", "-", "-o", so], input=CPP, text=True, check=True)
        self.lib = ctypes.CDLL(so)
        self.lib.pool_new.restype = ctypes.c_void_p
        self.lib.pool_new.argtypes = [ctypes.c_int]
        self.lib.pool_delete.argtypes = [ctypes.c_void_p]
        self.lib.bmm_nt.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 6
        self.pool = self.lib.pool_new(max(1, torch.get_num_threads() - 1))

    def forward(self, a, b):
        b = b.contiguous()
        y = torch.empty(a.shape[0], a.shape[1], b.shape[1])
        self.lib.bmm_nt(self.pool, a.data_ptr(), b.data_ptr(), y.data_ptr(), *y.shape, a.shape[2], a.stride(0), a.stride(1))
        return y
