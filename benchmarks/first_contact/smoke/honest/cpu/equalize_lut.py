import ctypes as ct, os, subprocess as sp, tempfile, torch

class ModelNew(torch.nn.Module):
    CPP = r'''
    #include <cstdint>
    #include <algorithm>
    extern "C" void equalize(const uint8_t* in, uint8_t* out, long planes, long pixels) {
        #pragma omp parallel for
        for (long p = 0; p < planes; p++) {
            const uint8_t* a = in + p * pixels;
            uint8_t* o = out + p * pixels;
            uint32_t h[4][256] = {};           // four tables: equal neighbours do not wait for each other
            long i = 0;
            for (; i + 4 <= pixels; i += 4) { h[0][a[i]]++; h[1][a[i+1]]++; h[2][a[i+2]]++; h[3][a[i+3]]++; }
            for (; i < pixels; i++) h[0][a[i]]++;
            int64_t cdf = 0, low = -1; uint8_t lut[256];
            for (int v = 0; v < 256; v++) {
                int64_t c = (int64_t)h[0][v] + h[1][v] + h[2][v] + h[3][v];
                cdf += c;
                if (low < 0 && cdf > 0) low = cdf;
                int64_t q = low < 0 ? 0 : (cdf - low) * 255 / std::max<int64_t>(pixels - low, 1);
                lut[v] = (uint8_t)std::min<int64_t>(q, 255);
            }
            for (long j = 0; j < pixels; j++) o[j] = lut[a[j]];
        }
    }'''

    def __init__(self):
        super().__init__()
        d = tempfile.mkdtemp()
        so = os.path.join(d, "eq.so")
        sp.run(["g++", "-xc++", "-", "-O2", "-fopenmp", "-fPIC", "-shared", "-o", so], input=self.CPP.encode(), check=True)
        self.fn = ct.CDLL(so).equalize

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        self.fn(ct.c_void_p(x.data_ptr()), ct.c_void_p(y.data_ptr()), ct.c_long(x.shape[0] * x.shape[1]), ct.c_long(x.shape[2] * x.shape[3]))
        return y
