"""The rules by which other benchmarks judge a kernel, so that a result can be told by them too. Free of torch.

They decide nothing here. Each rule was read in its benchmark's evaluator: KernelBench (eval.py and timing.py of
ScalingIntelligence/KernelBench at 423217d) and KernelBench-Verified (eval.py and generate_hidden_inputs.py of
facebookresearch/kernel_bench_verified). Two things differ: reference and kernel run in processes of their own, and
every timed call starts with a cold cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from foundry.knowledge.candidate import ForeignName
from foundry.knowledge.opgraph import DType

Tf32 = Literal["none", "convolutions", "all"]  # float32 products in which PyTorch may use TF32
DEFAULT_TF32: Tf32 = "convolutions"  # PyTorch's own default
SEED = 42  # seed of parameters, of the first inputs, and of the seeds of all other inputs


@dataclass(frozen=True)
class ForeignRules:
    """Rules of another benchmark: how inputs are drawn, compared and timed.

    Both sides build their models from SEED; nothing is copied from one to the other. Each trial draws get_inputs()
    anew and multiplies the floating ones by its factor. Unless the factor is 1, a trial is left out if the reference
    raises or is not finite. Outputs must be close by torch.allclose, with the same absolute and relative tolerance.
    Then both are timed on one set of inputs, and their means are compared.
    """

    timed_tf32: Tf32  # use of TF32 in the timed eager reference; the reference for correctness has PyTorch's defaults
    factors: tuple[float, ...]
    tolerance: dict[DType, float]
    warm_calls: int = 3
    calls: int = 100

    def tolerance_of(self, dtype: DType) -> float:
        """Tolerance for this dtype; the one of float32 if none is given."""
        return self.tolerance.get(dtype, self.tolerance["float32"])


FOREIGN: dict[ForeignName, ForeignRules] = {
    "kernelbench": ForeignRules(DEFAULT_TF32, (1.0,) * 5, {"float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}),
    "verified": ForeignRules(
        "all", (*(1.0,) * 5, 1.0, 3.0, 0.01, -1.0), {"float32": 1e-3, "float16": 1e-2, "bfloat16": 1e-2}
    ),
}
