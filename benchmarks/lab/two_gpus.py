"""How much less time a bench takes on two GPUs of a host than on one of them, which gets half of the host's cores.

    python benchmarks/lab/two_gpus.py --out two-gpus.jsonl

42 tasks: ten of the examples and four of `unseen_science` at three sizes each, one evaluation a task. Each run begins
with a home of its own and empty caches of compiled kernels; what the ceilings of the GPUs are has been measured before,
by a bench of two tasks. The run on two comes first. On one H200 they take 12 minutes, on two 7; `--every N` takes every
N-th task.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = (
    *("attention", "cross_entropy", "gemm_bias_relu", "groupnorm_silu", "layernorm_gelu", "masked_cumsum", "mlp"),
    *("pointwise_chain", "rmsnorm_residual", "softmax"),
)
SCALES = (8, 6, 5)
# Of `unseen_science`: the line that says how large a task is, and what else it may say.
SIZES = {
    "s03": ("B, N = 3, 300", "B, N = 4, 300", "B, N = 3, 280"),
    "s05": ("B, M, K = 22000, 11, 6", "B, M, K = 26000, 11, 6", "B, M, K = 18000, 11, 6"),
    "s08": ("N, C = 45000, 16", "N, C = 50000, 16", "N, C = 40000, 16"),
    "s09": ("B, H, W = 1, 151, 203", "B, H, W = 1, 161, 203", "B, H, W = 1, 151, 213"),
}
WARM_UP = ("pointwise_chain", "softmax")
KEPT = ("task", "verdict", "reason", "speedup_vs_eager", "speedup_vs_compile", "wall_s", "finished", "versions")


def write_tasks(folder: Path) -> None:
    """One file for each task and size."""
    folder.mkdir()
    for name in EXAMPLES:
        text = (ROOT / "examples" / f"{name}.py").read_text()
        for scale in SCALES:
            _write(folder / f"{name}_{scale}.py", text, "SCALE = 1", f"SCALE = {scale}")
    for name, (own, *others) in SIZES.items():
        text = (ROOT / "benchmarks" / "unseen_science" / f"{name}.py").read_text()
        for number, size in enumerate((own, *others)):
            _write(folder / f"{name}_{number}.py", text, own, size)


def _write(path: Path, text: str, line: str, instead: str) -> None:
    if text.count(line) != 1:
        raise SystemExit(f"{path.stem}: not one line says {line}")
    path.write_text(text.replace(line, instead))


def bench(tasks: Path, gpus: str, home: Path, *more: str) -> tuple[float, list[dict[str, Any]]]:
    """Seconds of the command from start to end, and its lines of results."""
    command = [sys.executable, "-m", "foundry.cli", "bench", str(tasks), "--gpus", gpus, "--evaluations", "1"]
    command += ["--minutes", "0.2", "--no-pictures", "--out", str(home / "bench"), *more]
    own = {"FOUNDRY_HOME": str(home), "FOUNDRY_BUILD_CACHE": str(home / "build")}
    began = time.monotonic()
    subprocess.run(command, env={**os.environ, **own}, check=True)
    seconds = time.monotonic() - began
    return seconds, [json.loads(line) for line in (home / "bench" / "results.jsonl").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="one line of JSON a task and run")
    parser.add_argument("--many", default="all", help="--gpus of the first run")
    parser.add_argument("--every", type=int, default=1, help="every N-th task")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        took: list[float] = []
        write_tasks(folder / "tasks")
        (folder / "warm-up").mkdir()
        for task in WARM_UP:
            shutil.copy(ROOT / "examples" / f"{task}.py", folder / "warm-up")
        bench(folder / "warm-up", arguments.many, folder / "measured")
        shutil.rmtree(folder / "measured" / "bench")
        shutil.rmtree(folder / "measured" / "build", ignore_errors=True)
        cores = sorted(os.sched_getaffinity(0))
        for number, gpus in enumerate((arguments.many, "1")):
            home = folder / f"home-{number}"
            shutil.copytree(folder / "measured", home)
            if number:
                os.sched_setaffinity(0, cores[: max(len(cores) // 2, 1)])
            seconds, rows = bench(folder / "tasks", gpus, home, "--every", str(arguments.every))
            took.append(seconds)
            accepted = sum(row["verdict"] == "accepted" for row in rows)
            print(f"--gpus {gpus}: {seconds:.1f} s, {accepted} of {len(rows)} tasks accepted", flush=True)
            with arguments.out.open("a") as out:
                for row in rows:
                    out.write(json.dumps({"gpus": gpus} | {key: row[key] for key in KEPT}) + "\n")
        print(f"{took[0] / took[1]:.3f} of the time on one")


if __name__ == "__main__":
    main()
