"""What it costs to watch a run: the time until its first picture, and the processor time of each further one.

python benchmarks/watching.py runs/softmax-20261120-120000
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from foundry.graph.live.reader import RunReader
from foundry.graph.live.scene import Scene
from foundry.graph.live.screen import Below, draw
from foundry.graph.live.watch import REFRESH_S

PICTURES = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run")
    path: Path = parser.parse_args().run
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    began = time.process_time()
    reader = RunReader(path)
    scene = Scene(reader.request)

    def show(live: Live) -> None:
        for event in reader.news():
            scene.take(event)
        lines = draw(scene, reader.standing(), Below(typed=""), time.time(), 80, 24)
        live.update(Text("\n").join(lines), refresh=True)

    with Live(console=console, screen=True, auto_refresh=False) as live:
        show(live)
        first_s = time.process_time() - began
        costs = []
        for _ in range(PICTURES):
            began = time.process_time()
            show(live)
            costs.append(time.process_time() - began)
    reader.close()
    cost_s = statistics.median(costs)
    print(
        f"{len(scene.curve)} evaluations: first picture after {first_s:.2f} s, each further one {1e3 * cost_s:.1f} ms"
    )
    print(f"at one every {REFRESH_S:g} s at most that is {100 * cost_s / REFRESH_S:.2f} % of one core")


if __name__ == "__main__":
    main()
