"""Plants known faults into a correct kernel of every example and writes how many the grader caught.

    python benchmarks/selftest.py --out benchmarks/results/selftest-cpu.json
    python benchmarks/selftest.py --faults 200 --seed 1 softmax mlp
    python benchmarks/selftest.py --table benchmarks/results/selftest-cpu.json

Each example is one `foundry verify --self-test` in its own process, with `--json`. Exit 0 when the share of faults that
were caught, over all examples together, reaches `--min-caught`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUMS = ("caught", "missed", "equivalent", "not_planted")


def test_example(example: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One self-test as its user would start it."""
    command = [sys.executable, "-m", "foundry.cli", "verify", "--self-test", str(example), "--json"]
    command += ["--target", arguments.target, "--faults", str(arguments.faults), "--seed", str(arguments.seed)]
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    row: dict[str, Any] = {"example": example.stem, "exit": done.returncode}
    try:
        row |= json.loads(done.stdout)
    except ValueError:
        row["error"] = (done.stderr or done.stdout).strip()[-300:]
    row["seconds"] = round(time.monotonic() - begun, 1)
    return row


def sums(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts over all examples, and the share of counted faults that was caught."""
    total: dict[str, Any] = {name: sum(row.get(name, 0) for row in rows) for name in SUMS}
    counted = total["caught"] + total["missed"]
    families: dict[str, list[int]] = {}
    for row in rows:
        for family, (caught, of) in row.get("families", {}).items():
            have = families.setdefault(family, [0, 0])
            families[family] = [have[0] + caught, have[1] + of]
    total["rate"] = round(total["caught"] / counted, 4) if counted else 0.0
    return {**total, "families": families}


def table(document: dict[str, Any]) -> str:
    """Markdown: examples, then families, then what was missed."""
    lines = ["| example | faults | caught | missed | equivalent | rate | s |", "|---|---|---|---|---|---|---|"]
    for row in document["rows"]:
        if "error" in row:
            lines.append(f"| {row['example']} | | | | | {row['error']} | {row['seconds']:.0f} |")
            continue
        numbers = [len(row["faults"]), row["caught"], row["missed"], row["equivalent"], f"{100 * row['rate']:.1f} %"]
        lines.append(f"| {row['example']} | {' | '.join(map(str, numbers))} | {row['seconds']:.0f} |")
    total = document["total"]
    planted = sum(total[name] for name in SUMS)
    numbers = [planted, total["caught"], total["missed"], total["equivalent"], f"**{100 * total['rate']:.1f} %**"]
    lines += [f"| **all** | {' | '.join(map(str, numbers))} | |", "", "| family | caught |", "|---|---|"]
    lines += [f"| {family} | {caught} of {of} |" for family, (caught, of) in total["families"].items()]
    for row in document["rows"]:
        for fault in row.get("faults", []):
            if fault["standing"] != "caught":
                lines.append(f"\n{fault['standing']}: {row['example']}: {fault['what']} ({fault['where']})")
                lines.append(f"  {fault['evidence']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", help="names of examples; default: all")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--faults", type=int, default=32, help="faults an example")
    parser.add_argument("--seed", type=int, default=0, help="chooses the faults")
    parser.add_argument("--min-caught", type=float, default=0.98)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    parser.add_argument("--table", type=Path, help="only print the table of a result file")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text())))
        return 0
    paths = sorted((ROOT / "examples").glob("*.py"))
    rows = []
    for path in paths:
        if arguments.examples and path.stem not in arguments.examples:
            continue
        rows.append(test_example(path, arguments))
        print(f"{path.stem}: {rows[-1].get('error') or rows[-1]['rate']}, {rows[-1]['seconds']} s", file=sys.stderr)
    document = {
        "command": " ".join(["python", "benchmarks/selftest.py", *sys.argv[1:]]),
        "total": sums(rows),
        "rows": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document))
    complete = not any("error" in row for row in rows)
    return 0 if complete and document["total"]["rate"] >= arguments.min_caught else 1


if __name__ == "__main__":
    sys.exit(main())
