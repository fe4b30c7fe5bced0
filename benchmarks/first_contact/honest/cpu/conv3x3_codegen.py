# Direct 3x3 convolution, C++ written for the shape at hand when the first call arrives.
import ctypes
import hashlib
import os
import pathlib
import subprocess
import tempfile

import torch
import torch.nn as nn


def generate(batch: int, cin: int, cout: int, height: int, width: int) -> str:
    """All sizes are compile-time constants; the nine taps are unrolled; OB output channels share each loaded pixel."""
    ob = next(n for n in (4, 2, 1) if cout % n == 0)
    lines = [
        "#include <cstring>",
        f"constexpr int B = {batch}, C = {cin}, O = {cout}, H = {height}, W = {width}, P = W + 2;",
        'extern "C" void conv(const float* __restrict x, const float* __restrict w, const float* __restrict b, float* __restrict y, float* pad) {',
        "  #pragma omp parallel",
        "  {",
        "    #pragma omp for",
        "    for (int p = 0; p < B * C; ++p) {",
        "      float* d = pad + (long)p * (H + 2) * P;",
        "      std::memset(d, 0, sizeof(float) * P);",
        "      for (int r = 0; r < H; ++r) {",
        "        d[(r + 1) * P] = 0.f;",
        "        std::memcpy(d + (r + 1) * P + 1, x + ((long)p * H + r) * W, sizeof(float) * W);",
        "        d[(r + 1) * P + W + 1] = 0.f;",
        "      }",
        "      std::memset(d + (H + 1) * P, 0, sizeof(float) * P);",
        "    }",
        "    #pragma omp for collapse(2)",
        f"    for (int n = 0; n < B; ++n) for (int o = 0; o < O; o += {ob})",
        "    for (int r = 0; r < H; ++r) {",
    ]
    for k in range(ob):
        lines.append(f"      float a{k}[W]; for (int i = 0; i < W; ++i) a{k}[i] = 0.f;")
    lines.append("      for (int c = 0; c < C; ++c) {")
    lines.append("        const float* s = pad + ((long)(n * C + c) * (H + 2) + r) * P;")
    for ky in range(3):
        for kx in range(3):
            for k in range(ob):
                lines.append(f"        const float w{k}_{ky}{kx} = w[((o + {k}) * C + c) * 9 + {ky * 3 + kx}];")
    lines.append("        for (int i = 0; i < W; ++i) {")
    for ky in range(3):
        for kx in range(3):
            lines.append(f"          const float v{ky}{kx} = s[{ky} * P + i + {kx}];")
    for k in range(ob):
        total = " + ".join(f"w{k}_{ky}{kx} * v{ky}{kx}" for ky in range(3) for kx in range(3))
        lines.append(f"          a{k}[i] += {total};")
    lines += ["        }", "      }"]
    for k in range(ob):
        lines.append(f"      for (int i = 0; i < W; ++i) {{ const float v = a{k}[i] + b[o + {k}]; y[(((long)n * O + o + {k}) * H + r) * W + i] = v < 0.f ? 0.f : v; }}")
    lines += ["    }", "  }", "}"]
    return "\n".join(lines)


_built = {}


def kernel_for(*shape):
    if shape not in _built:
        code = generate(*shape)
        root = pathlib.Path(tempfile.gettempdir()) / f"conv3x3-{os.getuid()}"
        root.mkdir(exist_ok=True)
        stem = hashlib.md5(code.encode()).hexdigest()
        so = root / (stem + ".so")
        if not so.exists():
            cpp = root / (stem + ".cpp")
            cpp.write_text(code)
            tmp = root / f"{stem}.{os.getpid()}.tmp"
            subprocess.run(["g++", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC", str(cpp), "-o", str(tmp)], check=True)
            tmp.rename(so)
        _built[shape] = ctypes.CDLL(str(so)).conv
    return _built[shape]


class ModelNew(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)

    def forward(self, x):
        x = x.contiguous()
        n, c, h, w = x.shape
        y = torch.empty(n, self.conv.out_channels, h, w)
        padded = torch.empty(n * c * (h + 2) * (w + 2))
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, self.conv.weight, self.conv.bias, y, padded)]
        kernel_for(n, c, self.conv.out_channels, h, w)(*pointers)
        return y
