"""The device a kernel runs on, and the ceilings measured on it once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from foundry.knowledge.targets import TargetTraits, find_target

TargetName = str  # one of targets.target_names()
Precision = Literal["ieee", "tf32", "half"]  # arithmetic of a matrix product: float32, TF32, 16-bit floats


@dataclass(frozen=True)
class Ceilings:
    """Best rates that this device reached in our own measurements (never a data sheet's)."""

    copy_bytes_per_s: float  # a large copy, read plus written
    cache_bytes_per_s: float  # the same over a buffer that fits the last-level cache
    ieee_flops_per_s: float  # float32 matrix product, IEEE
    tf32_flops_per_s: float  # float32 matrix product with TF32 allowed (equal to IEEE without TF32)
    # Products of 16-bit floats, the faster kind (equal to IEEE without an instruction for them).
    half_flops_per_s: float
    launch_ms: float  # shortest time of one kernel launch or parallel region
    measured_on: str  # ISO date

    def flops_per_s(self, precision: Precision) -> float:
        """The rate of arithmetic in a precision."""
        rates: dict[Precision, float] = {
            "ieee": self.ieee_flops_per_s,
            "tf32": self.tf32_flops_per_s,
            "half": self.half_flops_per_s,
        }
        return rates[precision]


@dataclass(frozen=True)
class Device:
    """Identity and limits of a device.

    `key` names its kind in stores and receipts: a lesson from one holds for all of the same kind. `unit` names the
    one physical device, for locks: two GPUs of a host do not disturb each other.
    """

    target: TargetName
    name: str
    arch: str  # "x86-64-v4" or "sm_90"
    cores: int  # CPU threads used, or SMs
    cache_bytes: int  # last-level cache
    vector_bytes: int  # SIMD register width, or 16 (widest load) on a GPU
    memory_bytes: int
    present: bool = True  # False: kernels compile for it, but nothing can run
    ceilings: Ceilings | None = None
    facts: dict[str, str] = field(default_factory=dict)  # compiler, driver, torch versions
    uuid: str = ""  # id of the GPU or MIG instance; "" on a CPU

    @property
    def traits(self) -> TargetTraits:
        """Facts of the device's target (`targets.TargetTraits`)."""
        return find_target(self.target)

    @property
    def key(self) -> str:
        """The name of the device's kind, used in stores, receipts and runs."""
        return f"{self.target}:{self.name}:{self.cores}"

    @property
    def unit(self) -> str:
        """The name of the physical device, used in locks and ceilings."""
        return f"{self.key}:{self.uuid}" if self.uuid else self.key

    def floor_ms(self, flops: float, traffic_bytes: float, precision: Precision) -> float | None:
        """Roofline floor (Williams, Waterman, Patterson 2009) in ms: the larger of the arithmetic and memory times.

        None without ceilings. `roofline` chooses the precision.
        """
        if self.ceilings is None:
            return None
        rate = self.ceilings.flops_per_s(precision)
        fits = traffic_bytes <= self.cache_bytes
        bandwidth = self.ceilings.cache_bytes_per_s if fits else self.ceilings.copy_bytes_per_s
        return 1e3 * max(flops / rate, traffic_bytes / bandwidth)
