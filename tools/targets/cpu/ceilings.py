"""Best rates of the processor, by a C++ program that is compiled and run."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from pathlib import Path

from foundry.knowledge.device import Ceilings, Device
from foundry.tools.targets.cpu.describe import gxx_path
from foundry.tools.targets.measuring import run_benchmark

BENCHMARK = Path(__file__).with_name("ceilings.cpp")
CPU_SECONDS = 1.5


def measure_cpu(device: Device) -> Ceilings:
    """Compiles and runs the benchmark program, which takes seconds; returns its rates. Raises FoundryError."""
    with tempfile.TemporaryDirectory(prefix="foundry-ceilings-") as folder:
        program = Path(folder) / "ceilings"
        run_benchmark(
            [str(gxx_path()), "-O3", "-march=native", "-fopenmp", str(BENCHMARK), "-o", str(program)],
            "the benchmark did not compile",
        )
        environment = {**os.environ, "OMP_NUM_THREADS": str(device.cores), "OMP_DYNAMIC": "false"}
        text = run_benchmark(
            [str(program), str(device.cache_bytes), str(CPU_SECONDS)], "the benchmark did not run", environment
        )
    rates: dict[str, float] = json.loads(text)
    return Ceilings(
        copy_bytes_per_s=rates["copy_bytes_per_s"],
        cache_bytes_per_s=max(rates["cache_bytes_per_s"], rates["copy_bytes_per_s"]),
        ieee_flops_per_s=rates["flops_per_s"],
        tf32_flops_per_s=rates["flops_per_s"],
        half_flops_per_s=rates["half_flops_per_s"],
        launch_ms=rates["launch_ms"],
        measured_on=datetime.date.today().isoformat(),
    )
