"""Judges kernels that were written without sight of the auditor: `first_contact/honest` and `first_contact/cheats`.

    python benchmarks/first_contact.py                       # all CPU files by `foundry verify`, two at a time
    python benchmarks/first_contact.py --target cuda --workers 4 --out first.jsonl
    python benchmarks/first_contact.py honest/cpu/bf16_bits.py

Each INDEX.md says what a file does and which task is its. The cheats are hostile on purpose: run them only through
this. Their code is kept as it was handed in, neither linted nor typed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent / "first_contact"
LIMIT_S = 600


@dataclass(frozen=True)
class Ruling:
    """What `foundry verify` said of one file; `is_right` when an honest kernel is accepted, or a cheat is not.
    `seconds` of its steps, as it counts them, and of all from start to end."""

    file: str
    verdict: str
    is_right: bool
    reasons: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)


def pairs(kind: str, target: str) -> Iterator[tuple[Path, Path]]:
    """Each file of a kind ("honest", "cheats") with its task, as the INDEX names them."""
    for line in (HERE / kind / "INDEX.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")]
        if len(cells) > 3 and re.match(rf"{target}/\w+\.py$", cells[1]):
            yield HERE / kind / cells[1], HERE / kind / "tasks" / f"{Path(cells[2]).stem}.py"


def judge(pair: tuple[Path, Path], target: str) -> Ruling:
    candidate, task = pair
    command = [sys.executable, "-m", "foundry.cli", "verify", str(task), str(candidate), "--json", "--target", target]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    took_s = round(time.monotonic() - start, 1)
    name = str(candidate.relative_to(HERE))
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return Ruling(name, "error", False, (done.stderr.strip()[-300:],), {"all": took_s})
    reasons = tuple(f"{item['gate']}: {item['evidence'][:160]}" for item in found["reasons"])
    is_right = (found["verdict"] == "accepted") == name.startswith("honest")
    return Ruling(name, str(found["verdict"]), is_right, reasons, {**found["seconds"], "all": took_s})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files below first_contact; all of the target when none is named")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a JSON line for each file")
    arguments = parser.parse_args()
    every = [pair for kind in ("honest", "cheats") for pair in pairs(kind, arguments.target)]
    chosen = [pair for pair in every if not arguments.files or str(pair[0].relative_to(HERE)) in arguments.files]
    right: Counter[str] = Counter()
    with ThreadPoolExecutor(arguments.workers) as pool:
        for done in as_completed([pool.submit(judge, pair, arguments.target) for pair in chosen]):
            ruling = done.result()
            right[ruling.file.split("/")[0]] += ruling.is_right
            mark = "" if ruling.is_right else "WRONG "
            seconds = " ".join(f"{step} {value:.1f}" for step, value in ruling.seconds.items())
            print(f"{mark}{ruling.verdict:10} {ruling.file:42} [{seconds} s] {'; '.join(ruling.reasons)}", flush=True)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as sink:
                    sink.write(json.dumps(asdict(ruling)) + "\n")
    for kind in ("honest", "cheats"):
        total = sum(str(candidate.relative_to(HERE)).startswith(kind) for candidate, _ in chosen)
        print(f"{kind}: {right[kind]} of {total} right")


if __name__ == "__main__":
    main()
