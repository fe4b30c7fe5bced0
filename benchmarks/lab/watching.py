"""What it costs to watch a run, in processor time: its first picture and each further one, its trace, its page.

python benchmarks/lab/watching.py runs/softmax-20261120-120000
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

from foundry.graph.run.events import EventLog
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.page.facts import run_facts
from foundry.graph.show.page.write import run_page
from foundry.graph.show.terminal.reader import RunReader
from foundry.graph.show.terminal.scene import Scene
from foundry.graph.show.terminal.screen import Below, draw
from foundry.graph.show.terminal.watch import REFRESH_S
from foundry.graph.show.trace import tree
from foundry.graph.show.view import RunView

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
    run = RunDirectory.inspect(path, reading=True)
    began = time.process_time()
    console.print(tree.tree(run, depth=1, latest=60))
    told = RunView(run).summary.time_words
    trace_s = time.process_time() - began
    began = time.process_time()
    size = len(run_page(run_facts(run)))
    page_s = time.process_time() - began
    worked_s = EventLog(run.database, reading=True).elapsed_s()
    run.close()
    print(
        f"{len(scene.curve)} evaluations: first picture after {first_s:.2f} s, each further one {1e3 * cost_s:.1f} ms"
    )
    print(f"at one every {REFRESH_S:g} s at most that is {100 * cost_s / REFRESH_S:.2f} % of one core")
    print(f"trace ({told}): {trace_s:.2f} s; page: {page_s:.2f} s, {size / 1e6:.1f} MB")
    print(f"both once are {100 * (trace_s + page_s) / worked_s:.2f} % of the run's {worked_s:.0f} s")


if __name__ == "__main__":
    main()
