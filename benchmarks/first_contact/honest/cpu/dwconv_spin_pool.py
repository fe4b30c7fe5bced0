"""Kausale Tiefenfaltung + SiLU. Eigener kleiner Faden-Pool: entsteht beim ersten Aufruf, dreht kurz und schlaeft dann."""
import atexit
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

QUELLE = r"""
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

struct Auftrag { const float *x, *w, *b; float* y; long zeilen, kanaele, n; };

static void zeile(const Auftrag& a, long r) {
  const float* x = a.x + r * a.n; float* y = a.y + r * a.n;
  const float* w = a.w + (r % a.kanaele) * 4; const float b = a.b[r % a.kanaele];
  for (long t = 0; t < a.n; ++t) {
    float s = b;
    for (int k = 0; k < 4; ++k) if (t + k >= 3) s += w[k] * x[t + k - 3];
    y[t] = s / (1.f + std::exp(-s));
  }
}

class Pool {
  std::mutex m; std::condition_variable wach, fertig_cv;
  std::vector<std::thread> faeden;
  Auftrag auftrag{}; long runde = 0; int offen = 0; bool ende = false;
  std::atomic<long> naechste{0};
  void ziehen() { for (long r; (r = naechste.fetch_add(4)) < auftrag.zeilen;) for (long i = r; i < r + 4 && i < auftrag.zeilen; ++i) zeile(auftrag, i); }
 public:
  explicit Pool(int k) { for (int i = 0; i < k; ++i) faeden.emplace_back([this] {
    long gesehen = 0;
    for (;;) {
      std::unique_lock<std::mutex> l(m);
      wach.wait(l, [&] { return ende || runde != gesehen; });
      if (ende) return;
      gesehen = runde; l.unlock();
      ziehen();
      l.lock();
      if (--offen == 0) fertig_cv.notify_one();
    }
  }); }
  void los(const Auftrag& a) {
    { std::lock_guard<std::mutex> l(m); auftrag = a; naechste = 0; offen = (int)faeden.size(); ++runde; }
    wach.notify_all();
    ziehen();
    std::unique_lock<std::mutex> l(m);
    fertig_cv.wait(l, [&] { return offen == 0; });      // niemand arbeitet nach der Rueckkehr weiter
  }
  ~Pool() { { std::lock_guard<std::mutex> l(m); ende = true; } wach.notify_all(); for (auto& f : faeden) f.join(); }
};

static Pool* pool = nullptr;
extern "C" void falten(const Auftrag* a) {
  if (!pool) { int k = (int)std::thread::hardware_concurrency() - 1; pool = new Pool(k < 1 ? 1 : k > 7 ? 7 : k); }
  pool->los(*a);
}
extern "C" void schluss() { delete pool; pool = nullptr; }
"""


class Auftrag(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in ("x", "w", "b", "y")] + [(n, ctypes.c_long) for n in ("zeilen", "kanaele", "n")]


_datei = tempfile.mktemp(suffix=".so")
subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-pthread", "-shared", "-fPIC", "-xc++", "-", "-o", _datei], input=QUELLE, text=True, check=True)
_bib = ctypes.CDLL(_datei)
atexit.register(_bib.schluss)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 4, groups=channels, padding=3)

    def forward(self, x):
        x = x.contiguous()
        b, c, n = x.shape
        y = torch.empty_like(x)
        w, bias = self.conv.weight.contiguous(), self.conv.bias
        _bib.falten(ctypes.byref(Auftrag(x.data_ptr(), w.data_ptr(), bias.data_ptr(), y.data_ptr(), b * c, c, n)))
        return y
