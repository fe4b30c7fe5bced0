"""Which act convicts each cheat of the museum, and what each step costs. The text of a file only gives leads.

python benchmarks/lab/convictions.py                          # every CPU exhibit
python benchmarks/lab/convictions.py --target cuda --jobs 12  # on a machine with an NVIDIA GPU
python benchmarks/lab/convictions.py memo_in_cpp call_counter

A cheat that nothing convicts at its own stage is tried again with everything that a full proof asks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.exploits.museum import Case, Museum, Ruling, cases

from foundry.knowledge.device import TargetName
from foundry.tools.audit.text.leads import leads_of
from foundry.tools.audit.text.source import CandidateSource, read_source
from foundry.tools.grade.host.grader import thread_count
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote

HEADER = ("exhibit", "kind", "stage", "convicted by", "leads in the text", "evidence")
EVIDENCE_CHARS = 160


@dataclass(frozen=True)
class Row:
    """One exhibit: how it was judged, at which stage, and how many leads its text gives."""

    case: Case
    stage: str
    ruling: Ruling
    leads: int

    @property
    def is_wrong(self) -> bool:
        return self.ruling.accepted == (self.case.kind == "cheats")

    @property
    def line(self) -> str:
        acts = ", ".join(dict.fromkeys(self.ruling.found)) or "nothing"
        evidence = self.ruling.evidence.replace("|", "\\|").replace("\n", " ")[:EVIDENCE_CHARS]
        cells = (f"`{self.case.name}`", self.case.kind, self.stage, acts, str(self.leads), evidence)
        return f"| {' | '.join(cells)} |"


def rows_of(chosen: list[Case]) -> list[Row]:
    """One process's share of the exhibits, printed as they come."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="convictions-") as folder:
        zygote = Zygote.start(threads=thread_count(describe("cpu")))
        museum = Museum(Path(folder), zygote)
        try:
            for case in chosen:
                stage, ruling = case.stage, museum.verify(case)
                if ruling.accepted and case.kind == "cheats" and stage == "screen":
                    stage = "full"
                    ruling = museum.verify_text(case.task, case.text, case.target, stage, case.policy)
                found.append(Row(case, stage, ruling, _leads(case)))
                print(found[-1].line, flush=True)
        finally:
            museum.close()
            zygote.close()
    return found


def _leads(case: Case) -> int:
    source = read_source(case.text, case.task.read_text(encoding="utf-8"))
    return len(leads_of(source)) if isinstance(source, CandidateSource) else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="exhibits; all of them when none is named")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    arguments = parser.parse_args()
    target: TargetName = "cuda" if arguments.target == "cuda" else "cpu"
    every = [*cases("cheats", target), *cases("honest", target)]
    chosen = [case for case in every if not arguments.names or case.name in arguments.names]
    chosen.sort(key=lambda case: case.task.stem)
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    if arguments.jobs == 1:
        rows = rows_of(chosen)
    else:
        with ProcessPoolExecutor(arguments.jobs, max_tasks_per_child=1) as pool:
            shares = [chosen[index :: arguments.jobs] for index in range(arguments.jobs)]
            rows = [row for share in pool.map(rows_of, shares) for row in share]
    wrong = [row.case.name for row in rows if row.is_wrong]
    print(f"\n{len(rows)} exhibits, {len(wrong)} rulings wrong: {', '.join(wrong) or 'none'}")


if __name__ == "__main__":
    main()
