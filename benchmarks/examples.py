"""Solves every example and writes the table of the README: eager, torch.compile, ours, interval, evaluations, seconds.

    python benchmarks/examples.py --out benchmarks/results/cpu.json
    python benchmarks/examples.py --table benchmarks/results/cpu.json
    python benchmarks/examples.py --store STORE --seed 1 --out benchmarks/results/cpu-warm.json   # a second, warm round

Each example is one `foundry agent solve` in its own process, with `--json`; the store starts empty unless named. With
result files of cold and warm rounds, `--compare COLD WARM` (once a seed) prints what experience brought.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MEMORY_BOUND = {
    *("pointwise_chain", "softmax", "layernorm_gelu", "rmsnorm_residual", "groupnorm_silu"),
    *("cross_entropy", "masked_cumsum"),
}


KEPT = (
    *("verdict", "speedup", "speedup_ci95", "speedup_vs_compile", "baseline_ms", "compile_ms", "candidate_ms"),
    *("fraction_of_floor", "accuracy_class", "evaluations", "first_verified_s", "wall_s", "time"),
    *("device", "target", "brain"),
)


def solve(example: Path, arguments: argparse.Namespace, scratch: Path, gpus: Queue[int]) -> dict[str, Any]:
    """One run as its user would start it, with `gpus` on one of them alone; the row of the table."""
    store, runs = arguments.store or scratch / "store", scratch / "runs"
    command = [sys.executable, "-m", "foundry.cli", "agent", "solve", str(example), "--json"]
    command += ["--target", arguments.target, "--effort", arguments.effort, "--seed", str(arguments.seed)]
    command += ["--store", str(store), "--runs", str(runs)]
    if arguments.scale:
        command += ["--scale", str(arguments.scale)]
    gpu = gpus.get() if arguments.gpus else None
    own = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own})
    wall_s = time.monotonic() - begun
    if gpu is not None:
        gpus.put(gpu)
    row: dict[str, Any] = {"example": example.stem, "exit": done.returncode, "seconds": round(wall_s, 1)}
    try:
        summary = json.loads(done.stdout)
    except ValueError:
        row["error"] = (done.stderr or done.stdout).strip()[-300:]
        return row
    row |= {name: summary.get(name) for name in KEPT}
    row["evaluations_to_90"] = evaluations_to(Path(summary["run"]), 0.9)
    return row


def evaluations_to(run: Path, share: float) -> int | None:
    """How many evaluations the run had made when its best screened speedup first reached `share` of the best one."""
    with sqlite3.connect(f"file:{run / 'run.sqlite'}?mode=ro", uri=True) as database:
        bodies = database.execute(
            "SELECT body FROM evaluations WHERE candidate != 'c0' AND stage = 'screen' ORDER BY at"
        ).fetchall()
    speedups = []
    for (body,) in bodies:
        record = json.loads(body)
        proven = (
            record["verdict"] and record["verdict"]["outcome"] == "correct" and (record["audit"] or {}).get("clean")
        )
        speedups.append(record["timing"]["speedup"] if proven and record["timing"] else 0.0)
    best = max(speedups, default=0.0)
    wanted = share * best
    return next((count for count, speedup in enumerate(speedups, 1) if best and speedup >= wanted), None)


def geomean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| example | eager ms | compile ms | ours ms | speedup [95 %] | vs compile | evaluations | to 90 % | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row or row.get("speedup") is None:
            why = row.get("error") or row.get("verdict")
            lines.append(f"| {row['example']} | | | | {why} | | | | {row['seconds']:.0f} |")
            continue
        low, high = row["speedup_ci95"]
        versus = f"{row['speedup_vs_compile']:.2f}x" if row.get("speedup_vs_compile") else "–"
        compiled = f"{row['compile_ms']:.3f}" if row.get("compile_ms") else "–"
        proof = "" if row["verdict"] == "accepted" else f" ({row['verdict']})"
        lines.append(
            f"| {row['example']} | {row['baseline_ms']:.3f} | {compiled} | {row['candidate_ms']:.3f} |"
            f" {row['speedup']:.2f}x [{low:.2f}, {high:.2f}]{proof} | {versus} | {row['evaluations']} |"
            f" {row['evaluations_to_90'] or '–'} | {row['seconds']:.0f} |"
        )
    for name, chosen in (
        ("memory-bound", [row for row in rows if row["example"] in MEMORY_BOUND]),
        ("all", rows),
    ):
        speedups = [row["speedup"] for row in chosen if row.get("speedup")]
        lines.append(f"| **geomean, {name}** | | | | **{geomean(speedups):.2f}x** ({len(speedups)}) | | | | |")
    return "\n".join(lines)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Of a result file of this script, or of `foundry bench` (.jsonl)."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        found: list[dict[str, Any]] = json.loads(text)["rows"]
        return found
    bench = [json.loads(line) for line in text.splitlines()]
    return [row | {"example": row["task"], "seconds": row["wall_s"], "evaluations_to_90": None} for row in bench]


def compare(rounds: list[list[Path]]) -> str:
    """Evaluations to 90 % of the best speedup, cold against warm, over all pairs of rounds: a seed each."""
    pairs = []
    for cold, warm in rounds:
        known = {row["example"]: row for row in json.loads(warm.read_text())["rows"]}
        for row in json.loads(cold.read_text())["rows"]:
            other = known.get(row["example"], {})
            if row.get("evaluations_to_90") and other.get("evaluations_to_90"):
                pairs.append((row["example"], row["evaluations_to_90"], other["evaluations_to_90"]))
    lines = ["| example | cold | warm |", "|---|---|---|"]
    lines += [f"| {name} | {before} | {after} |" for name, before, after in pairs]
    for name, summary in (("median", statistics.median), ("mean", statistics.mean)):
        before, after = (summary([pair[i] for pair in pairs]) for i in (1, 2))
        lines.append(f"| **{name}** | **{before:.3g}** | **{after:.3g}** |")
    fewer = sum(after < before for _, before, after in pairs)
    more = sum(after > before for _, before, after in pairs)
    equal = len(pairs) - fewer - more
    return "\n".join(
        [*lines, f"warm: fewer in {fewer}, more in {more}, equal in {equal}; sign test p = {_p(fewer, more):.2f}"]
    )


def _p(fewer: int, more: int) -> float:
    """How often a fair coin is at least as uneven as this (two-sided sign test; ties say nothing)."""
    count = fewer + more
    tail = sum(math.comb(count, number) for number in range(min(fewer, more) + 1))
    return min(1.0, 2 * tail / 2**count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=int)
    parser.add_argument("--store", type=Path, help="a folder that is kept; default: empty, thrown away")
    parser.add_argument("--only", nargs="*", help="names of examples")
    parser.add_argument("--gpus", type=int, default=0, help="so many runs at a time, each on a GPU of its own")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of such a file, or of a bench's")
    parser.add_argument("--compare", nargs=2, type=Path, action="append", metavar=("COLD", "WARM"))
    arguments = parser.parse_args()
    if arguments.compare:
        print(compare(arguments.compare))
        return
    if arguments.table:
        print(table(rows_of(arguments.table)))
        return
    examples = sorted((ROOT / "examples").glob("*.py"))
    if arguments.only:
        examples = [path for path in examples if path.stem in arguments.only]
    rows: list[dict[str, Any]] = []
    gpus: Queue[int] = Queue()
    for number in range(arguments.gpus):
        gpus.put(number)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(max(1, arguments.gpus)) as pool:
        begun = [pool.submit(solve, example, arguments, Path(scratch), gpus) for example in examples]
        for done in as_completed(begun):
            row = done.result()
            rows = sorted([*rows, row], key=lambda item: str(item["example"]))
            print(row["example"], row.get("speedup"), row.get("error", ""), file=sys.stderr, flush=True)
            if arguments.out:
                report = {
                    "date": time.strftime("%Y-%m-%d"),
                    "seed": arguments.seed,
                    "scale": arguments.scale,
                    "gpus": arguments.gpus,
                    "rows": rows,
                }
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                arguments.out.write_text(json.dumps(report, indent=1, default=str))
    print(table(rows))


if __name__ == "__main__":
    main()
