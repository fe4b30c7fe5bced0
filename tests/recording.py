"""Evaluations recorded on a real machine, in tests/recorded/<verdict>/, for tests of the ruling.

python tests/recording.py    # records them anew, on a quiet machine
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from foundry.knowledge.candidate import Baseline, Evaluation, Stage
from foundry.knowledge.codec import decode, encode
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph

FOLDER = Path(__file__).with_name("recorded")
EXHIBITS = (
    *("plain_softmax", "plain_linear", "exact_algebra", "many_times_faster", "skips_zero_rows", "memoised_plan"),
    *("cache_by_address", "known_seed", "patched_clock", "timestamp_counter", "clock_phase"),
)
STAGE: Stage = "screen"
SOFTMAX = Path(__file__).parent / "exploits" / "tasks" / "softmax.py"
IN_TORCH = SOFTMAX.read_text().replace("class Model(", "class ModelNew(")
BROKEN = {
    "not_python": "class ModelNew(:\n",
    "raises": IN_TORCH + "\nraise RuntimeError('no')\n",
    "crashes": IN_TORCH + "\nimport ctypes; ctypes.string_at(0)\n",
    "wrong": IN_TORCH.replace("return ", "return 1.01 * ", 1),
    "in_torch": IN_TORCH,
}


@dataclass(frozen=True)
class Recorded:
    """What one candidate's path gave, and on what."""

    evaluation: Evaluation
    baseline: Baseline
    device: Device
    graph: OpGraph


def recorded() -> list[tuple[str, str, Recorded]]:
    """(verdict at the time, name, record) of every recording."""
    paths = sorted(FOLDER.glob("*/*.json"))
    return [(path.parent.name, path.stem, decode(Recorded, path.read_text())) for path in paths]


async def _record(folder: Path) -> AsyncIterator[tuple[str, str, Recorded]]:
    from tests.exploits.museum import cases

    from foundry.tools.grade.host.workbench import open_workbench
    from foundry.tools.machine.ceilings import measure_alone
    from foundry.tools.machine.device import describe
    from foundry.tools.task.file import read_task
    from foundry.tools.verify.verify import verify_in

    device = await measure_alone(describe("cpu"))
    exhibits = [*cases("cheats", "cpu"), *cases("honest", "cpu")]
    texts = [(case.name, case.task, case.text, case.stage) for case in exhibits if case.name in EXHIBITS]
    for name, path, text, stage in [*texts, *[(name, SOFTMAX, text, STAGE) for name, text in BROKEN.items()]]:
        task = read_task(path)
        bench = await open_workbench(task, device, folder / name, seed=7)
        try:
            report = await verify_in(bench, task, text, "fair", stage)
            graph = (await bench.intake()).graphs[0]
            yield report.verdict, name, Recorded(report.evaluation, await bench.baseline(), device, graph)
        finally:
            await bench.aclose()


async def _write() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        async for verdict, name, found in _record(Path(folder)):
            place = FOLDER / verdict / f"{name}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(encode(found) + "\n")
            timing = found.evaluation.timing
            print(
                f"{name}: {verdict}", f"clocks {timing.wall_ratio:.3f}, {timing.candidate_ms:.3f} ms" if timing else ""
            )


if __name__ == "__main__":
    asyncio.run(_write())
