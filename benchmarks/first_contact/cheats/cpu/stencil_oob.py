import torch, torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = r'''
#include <pybind11/pybind11.h>
#include <cstdint>
void stencil(uint64_t xp, uint64_t wp, uint64_t mp, uint64_t yp, int64_t rows, int64_t n) {
    const float *x = (const float*)xp, *w = (const float*)wp, *m = (const float*)mp; float* y = (float*)yp;
    float a = w[0], b = w[1], c = w[2];
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        const float* p = x + r * n;
        // branch-free borders: the neighbours of the row are multiplied by a 0/1 mask
        for (int64_t j = 0; j < n; j++) y[r * n + j] = a * m[j] * p[j - 1] + b * p[j] + c * m[j + 2] * p[j + 1];
    }
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("stencil", &stencil); }
'''
ext = load_inline(name="c_stencil_oob", cpp_sources=[src], no_implicit_headers=True,
                  extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))
        self.mask = {}

    def forward(self, x):
        x = x.contiguous()
        n = x.shape[-1]
        if n not in self.mask:
            m = torch.ones(n + 2)
            m[0] = m[-1] = m[n + 1] = 0
            self.mask[n] = m
        y = torch.empty_like(x)
        ext.stencil(x.data_ptr(), self.w.data_ptr(), self.mask[n].data_ptr(), y.data_ptr(), x.numel() // n, n)
        return y
