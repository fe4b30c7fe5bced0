"""Best rates of the first GPU as one JSON object; runs as a process: python -m foundry.tools.targets.cuda.measuring.

It says "ready" once PyTorch and a context are there, and measures when it is sent a line: copy through memory, copy
within the L2 cache, matrix product of float32 in IEEE and with TF32 and of 16-bit floats, shortest launch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

SIZE = 8192  # rows and columns of the matrix product: fills any GPU, about 3 ms with TF32 on an H200


def best_ms(work: Callable[[], object], *, repeats: int, inner: int = 1) -> float:
    """Shortest of `repeats` event-timed runs of `inner` calls, per call, in ms."""
    work()
    best = float("inf")
    for _ in range(repeats):
        start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        stop: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(inner):
            work()
        stop.record()
        stop.synchronize()
        best = min(best, start.elapsed_time(stop) / inner)
    return best


def copy_rate(count: int, repeats: int, inner: int) -> float:
    """Bytes read plus written per second by a copy of `count` floats."""
    source = torch.ones(count, device="cuda")
    target = torch.empty_like(source)
    return 2 * 4 * count / (1e-3 * best_ms(lambda: target.copy_(source), repeats=repeats, inner=inner))


def product_rate(dtype: torch.dtype, *, allow_tf32: bool = False) -> float:
    """FLOP/s of a SIZE-cubed matrix product."""
    torch.backends.cuda.matmul.allow_tf32 = allow_tf32
    a, b = (torch.randn(SIZE, SIZE, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * SIZE**3 / (1e-3 * best_ms(lambda: torch.mm(a, b, out=out), repeats=8))


def main() -> None:
    """Makes the context and prints "ready"; after a line of input measures the rates and prints them as JSON."""
    torch.zeros(1, device="cuda")  # makes the context
    print("ready", flush=True)
    sys.stdin.readline()  # the device is quiet from now on
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    tiny = torch.zeros(1, device="cuda")
    tiny.add_(1)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(1000):
        tiny.add_(1)
    torch.cuda.synchronize()
    launch_ms = time.perf_counter() - start  # 1000 launches: seconds are ms each
    copy = copy_rate(1 << 28, repeats=10, inner=1)
    rates = {
        "copy_bytes_per_s": copy,
        "cache_bytes_per_s": max(copy, copy_rate(max(cache // 16, 1 << 20), repeats=10, inner=20)),
        "ieee_flops_per_s": product_rate(torch.float32),
        "tf32_flops_per_s": product_rate(torch.float32, allow_tf32=True),
        "half_flops_per_s": max(product_rate(torch.float16), product_rate(torch.bfloat16)),
        "launch_ms": launch_ms,
    }
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
