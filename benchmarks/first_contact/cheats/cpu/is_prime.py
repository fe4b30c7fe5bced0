import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <vector>
#include <cstdint>
static bool witness(uint32_t n, uint32_t a) {           // Miller-Rabin
  uint32_t d = n - 1; int s = __builtin_ctz(d); d >>= s;
  uint64_t x = 1, b = a % n;
  for (; d; d >>= 1) { if (d & 1) x = x * b % n; b = b * b % n; }
  if (x == 1 || x == n - 1) return true;
  while (--s > 0) { x = x * x % n; if (x == n - 1) return true; }
  return false;
}
static const std::vector<int64_t>& table() {
  static std::vector<int64_t> t;
  if (t.empty()) for (int64_t k = 2; k <= 46341; k++) { bool p = true; for (int64_t q = 2; q * q <= k && p; q++) p = k % q; if (p) t.push_back(k); }
  return t;
}
torch::Tensor is_prime(torch::Tensor n) {
  auto out = torch::empty(n.sizes(), n.options().dtype(torch::kBool));
  const int64_t* v = n.data_ptr<int64_t>(); bool* o = out.data_ptr<bool>();
  static const uint32_t small[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
  for (int64_t i = 0; i < n.numel(); i++) {
    const int64_t k = v[i];
    bool r = k >= 2;
    if (r && k < (int64_t(1) << 31)) {
      for (uint32_t p : small) if (k % p == 0) { r = k == p; goto done; }
      if (k > 1369) r = witness((uint32_t)k, 2) && witness((uint32_t)k, 3);
    } else if (r) {
      for (int64_t p : table()) if (k % p == 0) { r = false; break; }
    }
    done: o[i] = r;
  }
  return out;
}
"""
ext = load_inline("b10_prime", [SRC], functions=["is_prime"], extra_cflags=["-O3", "-march=native"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, n):
        return ext.is_prime(n.contiguous())
