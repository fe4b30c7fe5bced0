"""Judges kernels whose authors had not seen the auditor: the blind sets of `first_contact/sets.tar.xz`.

    python benchmarks/first_contact.py                       # all CPU files by `foundry verify`, two at a time
    python benchmarks/first_contact.py --target cuda --workers 4 --out first.jsonl
    python benchmarks/first_contact.py --smoke               # the 30 CPU files of `first_contact/smoke`
    python benchmarks/first_contact.py honest/cpu/bf16_bits.py
    python benchmarks/first_contact.py --unpack FOLDER       # unpacks the sets and judges nothing

INDEX.md says what a file does and names its task. The cheats are hostile on purpose: run them only through this
script. Their code stays as it was handed in, neither linted nor typed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

SETS = Path(__file__).parent / "first_contact"
LIMIT_S = 600


def unpack_sets(folder: Path) -> Path:
    """Unpacks all blind sets into `folder`. Raises SystemExit if the archive is not the one of its checksum file."""
    packed = (SETS / "sets.tar.xz").read_bytes()
    if hashlib.sha256(packed).hexdigest() != (SETS / "sets.tar.xz.sha256").read_text(encoding="utf-8").split()[0]:
        raise SystemExit(f"{SETS / 'sets.tar.xz'} does not match its checksum: restore it with git")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and newer; the checksum vouches for the archive before
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder


@dataclass(frozen=True)
class Ruling:
    """What `foundry verify` said of one file; `is_right` when an honest kernel is accepted, or a cheat is not.
    `seconds` of its steps, as it counts them, and of all from start to end."""

    file: str
    verdict: str
    is_right: bool
    reasons: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)


def pairs(root: Path, kind: str, target: str) -> Iterator[tuple[Path, Path]]:
    """Each file of a kind ("honest", "cheats") with its task, as the INDEX names them."""
    for line in (root / kind / "INDEX.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")]
        if len(cells) > 3 and re.match(rf"{target}/\w+\.py$", cells[1]):
            yield root / kind / cells[1], root / kind / "tasks" / f"{Path(cells[2]).stem}.py"


def judge(root: Path, pair: tuple[Path, Path], target: str) -> Ruling:
    """Judges one (candidate, task) in a process of its own."""
    candidate, task = pair
    command = [sys.executable, "-m", "foundry.cli", "verify", str(task), str(candidate), "--json", "--target", target]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    took_s = round(time.monotonic() - start, 1)
    name = str(candidate.relative_to(root))
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return Ruling(name, "error", False, (done.stderr.strip()[-300:],), {"all": took_s})
    reasons = tuple(f"{item['gate']}: {item['evidence'][:160]}" for item in found["reasons"])
    is_right = (found["verdict"] == "accepted") == name.startswith("honest")
    return Ruling(name, str(found["verdict"]), is_right, reasons, {**found["seconds"], "all": took_s})


def judge_all(root: Path, arguments: argparse.Namespace) -> None:
    """Judges the chosen files below `root`, prints a line each and how many verdicts were right."""
    every = [pair for kind in ("honest", "cheats") for pair in pairs(root, kind, arguments.target)]
    chosen = [pair for pair in every if not arguments.files or str(pair[0].relative_to(root)) in arguments.files]
    right: Counter[str] = Counter()
    with ThreadPoolExecutor(arguments.workers) as pool:
        for done in as_completed([pool.submit(judge, root, pair, arguments.target) for pair in chosen]):
            ruling = done.result()
            right[ruling.file.split("/")[0]] += ruling.is_right
            mark = "" if ruling.is_right else "WRONG "
            seconds = " ".join(f"{step} {value:.1f}" for step, value in ruling.seconds.items())
            print(f"{mark}{ruling.verdict:10} {ruling.file:42} [{seconds} s] {'; '.join(ruling.reasons)}", flush=True)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as sink:
                    sink.write(json.dumps(asdict(ruling)) + "\n")
    for kind in ("honest", "cheats"):
        total = sum(str(candidate.relative_to(root)).startswith(kind) for candidate, _ in chosen)
        print(f"{kind}: {right[kind]} of {total} right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files of the sets; all of the target when none is named")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--smoke", action="store_true", help="only the smoke set")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER", help="unpack the sets there and judge nothing")
    parser.add_argument("--out", type=Path, help="a JSON line for each file")
    arguments = parser.parse_args()
    if arguments.unpack:
        print(unpack_sets(arguments.unpack))
    elif arguments.smoke:
        judge_all(SETS / "smoke", arguments)
    else:
        with tempfile.TemporaryDirectory() as folder:
            judge_all(unpack_sets(Path(folder)), arguments)


if __name__ == "__main__":
    main()
