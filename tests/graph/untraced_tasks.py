"""Five tasks that no tracer follows, each with a kernel as a model may write it: whole files with Foundry's lines."""

from __future__ import annotations

from dataclasses import dataclass

_HEAD = "import torch\n\n\nclass Model(torch.nn.Module):\n"
_TAIL = "\n\ndef get_init_inputs():\n    return []\n"


@dataclass(frozen=True)
class Untraced:
    """A task, and a right kernel for it: C++ functions, and the body of `forward` that calls them."""

    name: str
    model: str
    inputs: str
    code: str
    forward: str

    @property
    def task(self) -> str:
        return f"{_HEAD}{self.model}\n\ndef get_inputs():\n    return {self.inputs}\n{_TAIL}"

    @property
    def file(self) -> str:
        """The answer of a model."""
        body = "\n".join(f"        {line}" for line in self.forward.strip().splitlines())
        lines = "# @foundry build@\n# @foundry model@"
        source = f'SOURCE = r"""\n// @foundry header@\n{self.code.strip()}\n"""'
        return f"import torch\n\n{source}\n{lines}\n\n\nclass ModelNew(Model):\n    def forward(self, {body.lstrip()}\n"


EXPERTS = Untraced(
    "experts",
    """    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(4, 32, 32) * 0.2)

    def forward(self, x, chosen):
        out = torch.zeros_like(x)
        for expert in range(4):
            rows = torch.where(chosen == expert)[0].flip(0)
            if rows.numel():
                out[rows] = torch.relu(x[rows] @ self.weights[expert])
        return out
""",
    "[torch.randn(256, 32), torch.randint(0, 4, (256,))]",
    """
extern "C" void experts(const float* x, const long* chosen, const float* weights, float* out, long rows) {
#pragma omp parallel for
  for (long r = 0; r < rows; ++r) {
    float total[32] = {};
    for (long k = 0; k < 32; ++k)
#pragma omp simd
      for (long c = 0; c < 32; ++c) total[c] += x[r * 32 + k] * weights[(chosen[r] * 32 + k) * 32 + c];
    for (long c = 0; c < 32; ++c) out[r * 32 + c] = math::relu(total[c]);
  }
}
""",
    """x, chosen):
out = torch.empty_like(x)
call("experts", x, chosen, self.weights, out, x.shape[0])
return out""",
)
PAGES = Untraced(
    "pages",
    """    def forward(self, pages, table):
        total, held = torch.zeros_like(pages[0]), list(pages)
        for number in range(table.shape[0]):
            total = total + held[table[number].item()]
        return total.mean(0)
""",
    "[torch.randn(64, 16, 128), torch.randint(0, 64, (24,))]",
    """
extern "C" void gather_mean(const float* pages, const long* table, float* out, long count) {
  for (long c = 0; c < 128; ++c) out[c] = 0;
  for (long s = 0; s < 16; ++s) {
    float total[128] = {};
    for (long p = 0; p < count; ++p)
#pragma omp simd
      for (long c = 0; c < 128; ++c) total[c] += pages[(table[p] * 16 + s) * 128 + c];
    for (long c = 0; c < 128; ++c) out[c] += total[c] / 16;
  }
}
""",
    """pages, table):
out = torch.empty(128)
call("gather_mean", pages, table, out, table.shape[0])
return out""",
)
NMS = Untraced(
    "nms",
    """    def forward(self, corners, sizes, scores):
        boxes = torch.cat([corners, corners + sizes.abs()], 1)
        order = scores.sort(descending=True, stable=True).indices
        kept = torch.zeros_like(scores)
        while order.numel():
            best, order = order[0], order[1:]
            kept[best] = 1
            low = torch.maximum(boxes[best, :2], boxes[order, :2])
            high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
            shared = (high - low).clamp(min=0).prod(1)
            areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
            order = order[~(shared > 0.5 * (areas[best] + areas[order] - shared))]
        return kept
""",
    "[torch.rand(96, 2) * 10, torch.rand(96, 2) * 4 + 1, torch.rand(96)]",
    """
#include <algorithm>
extern "C" void suppress(const float* corners, const float* sizes, const float* scores, float* kept, long count) {
  long order[96];
  float low[96][2], high[96][2], area[96];
  for (long i = 0; i < count; ++i) {
    order[i] = i;
    kept[i] = 1;
    for (long d = 0; d < 2; ++d) low[i][d] = corners[2 * i + d], high[i][d] = low[i][d] + math::abs(sizes[2 * i + d]);
    area[i] = (high[i][0] - low[i][0]) * (high[i][1] - low[i][1]);
  }
  std::stable_sort(order, order + count, [&](long a, long b) {
    return scores[a] > scores[b] || (math::isnan(scores[a]) && !math::isnan(scores[b]));
  });
  for (long a = 0; a < count; ++a) {
    const long i = order[a];
    if (!kept[i]) continue;
    for (long b = a + 1; b < count; ++b) {
      const long j = order[b];
      float shared = 1;
      for (long d = 0; d < 2; ++d)
        shared *= math::maximum(math::minimum(high[i][d], high[j][d]) - math::maximum(low[i][d], low[j][d]), 0.0f);
      if (shared > 0.5f * (area[i] + area[j] - shared)) kept[j] = 0;
    }
  }
}
""",
    """corners, sizes, scores):
kept = torch.empty_like(scores)
call("suppress", corners, sizes, scores, kept, scores.shape[0])
return kept""",
)
BREAK = Untraced(
    "doubled",
    """    def forward(self, x):
        for _ in range(32):
            if x.abs().max() > 100:
                break
            x = x * 2
        return x + 0
""",
    "[torch.randn(64, 1024)]",
    """
extern "C" void grow(const float* x, float* out, long count) {
  float most = 0;
  for (long i = 0; i < count; ++i) most = math::maximum(most, math::abs(x[i]));
  float factor = 1;
  for (long step = 0; step < 32 && !(most * factor > 100); ++step) factor *= 2;
#pragma omp parallel for simd
  for (long i = 0; i < count; ++i) out[i] = x[i] * factor + 0.0f;
}
""",
    """x):
out = torch.empty_like(x)
call("grow", x, out, x.numel())
return out""",
)
COMPLEX = Untraced(
    "turned",
    """    def forward(self, real, imaginary, angle):
        turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), angle)
        return turned.real + 0, turned.imag + 0
""",
    "[torch.randn(64, 512), torch.randn(64, 512), torch.rand(512)]",
    """
extern "C" void turn(const float* real, const float* imaginary, const float* angle, float* to, float* side, long rows) {
#pragma omp parallel for
  for (long r = 0; r < rows; ++r)
#pragma omp simd
    for (long c = 0; c < 512; ++c) {
      const float cosine = math::cos(angle[c]), sine = math::sin(angle[c]);
      to[r * 512 + c] = real[r * 512 + c] * cosine - imaginary[r * 512 + c] * sine;
      side[r * 512 + c] = real[r * 512 + c] * sine + imaginary[r * 512 + c] * cosine;
    }
}
""",
    """real, imaginary, angle):
to, side = torch.empty_like(real), torch.empty_like(real)
call("turn", real, imaginary, angle, to, side, real.shape[0])
return to, side""",
)
TASKS = (EXPERTS, PAGES, NMS, BREAK, COMPLEX)
