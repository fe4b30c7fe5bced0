"""The live view: what it shows of a run, at 80 by 24, in a real terminal, and as plain lines."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from tests.graph.test_resume import CHILD

from foundry.agents.directives import RunQuestion
from foundry.graph.run.events import Event, EventKind
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import summarise
from foundry.graph.show.terminal.line import Line, keys_of
from foundry.graph.show.terminal.plain import PlainLines
from foundry.graph.show.terminal.reader import RunReader
from foundry.graph.show.terminal.scene import DOING, Scene
from foundry.graph.show.terminal.screen import Below, draw
from foundry.graph.show.terminal.watch import watch_plain
from foundry.graph.show.words.answers import answer
from foundry.graph.show.words.completion import Names, complete
from foundry.graph.solve import solve
from foundry.knowledge.codec import encode

ROOT = Path(__file__).resolve().parents[3]


def picture(path: Path, below: Below | None = None, width: int = 80, height: int = 24) -> list[str]:
    """The screen of a run as it stands."""
    reader = RunReader(path)
    scene = Scene(reader.request)
    for event in reader.news():
        scene.take(event)
    lines = draw(scene, reader.standing(), below or Below(typed=""), time.time(), width, height)
    reader.close()
    return [line.plain for line in lines]


async def test_a_screen_holds_islands_budget_and_curve(make_request: Callable[..., SolveRequest], parts: Any) -> None:
    summary = await solve(make_request(12, islands=8), parts=parts())
    for width, height in ((80, 24), (60, 16), (120, 40)):
        lines = picture(Path(summary.run), width=width, height=height)
        assert len(lines) == height and all(len(line) <= width for line in lines)
        assert "/12 evaluations, " in lines[1] and " min" in lines[1]
        assert f"best {summary.candidate}: " in lines[2]
        assert all(f"{number} g" in " ".join("\n".join(lines).split()) for number in range(2))
        assert lines[-1] == ">  "
    shown = "\n".join(picture(Path(summary.run)))
    assert "best so far" in shown and "█" in shown


def test_a_killed_run_is_interrupted_wherever_one_looks(finished: Path, tmp_path: Path) -> None:
    """Nobody could tell it that it runs no more: its folder says `running`."""
    shutil.copytree(finished, tmp_path / "killed")
    run = RunDirectory.inspect(tmp_path / "killed")
    run.set("status", "running")
    assert answer(run, RunQuestion("status")).startswith("killed: interrupted.")
    assert summarise(run).verdict == "interrupted"
    run.close()
    assert "interrupted" in picture(tmp_path / "killed")[0]


def test_the_best_is_the_proven_one_and_not_the_luckiest_screen(make_request: Callable[..., SolveRequest]) -> None:
    told: list[str] = []
    lines = PlainLines(Scene(make_request()), told.append)
    looks = [("c1", "screen", 2.6), ("c2", "screen", 1.5), ("c1", "final", 1.3), ("c2", "final", 1.5)]
    for number, (name, stage, speedup) in enumerate(looks):
        ends = (speedup * 0.9, speedup * 1.1)
        data = {"outcome": "correct", "stage": stage, "speedup": speedup, "speedup_ci95": ends}
        lines.take(Event(number, "evaluation", name, None, f"{stage}/{name}", None, number, number, data))
    assert [line.split("(")[1].split(",")[0] for line in told] == [
        "best c1 2.60x",
        "best c1 2.60x",
        "best c1 1.30x",
        "best c2 1.50x",
    ]


def test_why_a_directive_cannot_be_followed_is_told_once(make_request: Callable[..., SolveRequest]) -> None:
    told: list[str] = []
    lines = PlainLines(Scene(make_request()), told.append)
    for island in range(4):
        for number, said in ((1, "no such tunable"), (2, "")):
            data = {"directive": f"d{number}", "text": "@tiling blok 8", "reader": f"island {island}", "answer": said}
            lines.take(Event(2 * island + number, "directive", "taken", None, f"i{island}g1", island, 0, 0, data))
    assert sum("taken by island 0, which cannot follow it: no such tunable" in line for line in told) == 1
    assert sum("d1" in line for line in told) == 1 and sum("d2" in line for line in told) == 1


def test_a_line_says_what_a_step_changed_in_words(make_request: Callable[..., SolveRequest]) -> None:
    told: list[str] = []
    lines = PlainLines(Scene(make_request()), told.append)
    step = {"parent": "c1", "moves": ["row:set:unroll=8"], "rationale": "more loads", "cites": []}
    good: dict[str, Any] = {"outcome": "correct", "stage": "screen", "speedup": 1.27, "speedup_ci95": (1.2, 1.3)}
    bad = {"outcome": "wrong_result", "evidence": "row 0 differs", "expert": "tiling", "speedup": None}
    for number, (kind, name, data) in enumerate(
        [
            ("evaluation", "c1", {**good, "made": "the kernel compiler's first kernel"}),
            ("proposal", "tiling", {**step, "candidate": "c2", "words": "unroll 8 vectors, chunk 4096 points"}),
            ("evaluation", "c2", {**good, "speedup": 1.31, "speedup_ci95": (1.25, 1.35)}),
            ("proposal", "fusion", {**step, "candidate": "c3", "moves": ["split:row"]}),
            ("evaluation", "c3", bad),
            ("evaluation", "c2", {**good, "stage": "final", "expert": "final"}),
        ]
    ):
        lines.take(Event(number, cast(EventKind, kind), name, None, f"i0g{number}", None, 0, 0, data))
    assert [line.partition(" min ")[2] for line in told] == [
        "c1 the kernel compiler's first kernel: 1.27x (best c1 1.27x, evaluation 1)",
        "c2 tiling: unroll 8 vectors, chunk 4096 points: 1.31x (best c2 1.31x, evaluation 2)",
        "c3 fusion: a value of a row kernel written to memory: wrong result, row 0 differs "
        "(best c2 1.31x, evaluation 3)",
        "c2 proof: 1.27x (best c2 1.27x, evaluation 3)",
    ]


def test_an_island_s_step_is_seen_while_it_is_under_way(make_request: Callable[..., SolveRequest]) -> None:
    scene = Scene(make_request(12, islands=1))
    told = [
        ("node", "select", "i0g1", 1.0, {}),
        ("expert", "tiling", "i0g1", None, {"purpose": "propose", "parent": "c1"}),
        ("node", "verify", "i0g1", None, {}),
        ("expert", "diagnostician", "i0g2", None, {"purpose": "propose", "parent": "c5"}),
    ]
    seen = []
    for number, (kind, name, step, ended, data) in enumerate(told):
        scene.take(Event(number, cast(EventKind, kind), name, 0, step, None, number, ended, data))
        seen.append((scene.islands[0].step.generation, scene.islands[0].step.expert, scene.islands[0].step.doing))
    assert seen == [
        (1, "", "starts"),
        (1, "tiling", "thinks about c1"),
        (1, "tiling", DOING["verify"]),
        (2, "diagnostician", "thinks about c5"),
    ]


async def test_watching_follows_a_run_and_writes_nothing(make_request: Callable[..., SolveRequest], parts: Any) -> None:
    """A span is seen when it opens and again when it closes; each evaluation is told in one line."""
    seen: list[str] = []
    readers: list[RunReader] = []
    news: list[tuple[int, bool]] = []

    def begin(path: Path) -> None:
        readers.append(RunReader(path))

    def look(_event: object) -> None:
        news.extend((event.id, event.ended is None) for event in readers[0].news())

    summary = await solve(make_request(8), look, parts=parts(), on_folder=begin)
    news.extend((event.id, event.ended is None) for event in readers[0].news())
    opened = {number for number, is_open in news if is_open}
    assert opened and opened <= {number for number, is_open in news if not is_open}
    with pytest.raises(Exception, match="readonly"):
        readers[0].run.set("winner", "c0")
    readers[0].close()
    watch_plain(Path(summary.run), seen.append)
    told = [line for line in seen if ", evaluation " in line]
    assert not [line for line in told if ":set:" in line or "_result" in line], "keys stay in the trace"
    assert f" {summary.candidate} proof: " in told[-1] and f", evaluation {summary.evaluations})" in told[-1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("st", ["start from", "status", "stop"]),
        ("@f", ["@fusion"]),
        ("@tiling un", ["unroll"]),
        ("why c1", ["c1", "c9", "c10"][::2]),
        ("diff c9 c", ["c1", "c9", "c10"]),
        ("start from ", ["c1", "c9", "c10"]),
        ("@fusion keep r", ["relu"]),
        ("@tiling unroll 4 in ", ["k0"]),
        ("withdraw ", ["d1"]),
        ("role me", ["memory"]),
    ],
)
def test_commands_and_the_run_s_names_are_completed(text: str, found: list[str]) -> None:
    names = Names(("tile", "unroll"), ("k0",), ("relu",), ("online",), ("c1", "c10", "c9"), ("d1",))
    assert complete(text, names, ("fusion", "tiling")) == found


def test_what_is_typed_is_edited_completed_and_brought_back() -> None:
    names = ("@tiling", "@fusion", "status", "stop")
    line = Line(lambda text: [name for name in names if name.startswith(text.rpartition(" ")[2])])
    for key in keys_of("@ti\tunrol 4\x1b[D\x1b[Dl\x05"):
        assert line.press(key) is None
    assert line.text == "@tiling unroll 4"
    assert line.press("\r") == "@tiling unroll 4" and line.text == ""
    for key in keys_of("st\t"):
        line.press(key)
    assert line.text == "st" and line.offers == ["status", "stop"]
    for key in keys_of("\x15\x1b[A\x17\x7f"):
        line.press(key)
    assert line.text == "@tiling unroll"


@dataclass
class Terminal:
    """A real terminal of 80 by 24, in which a command runs."""

    socket: str

    def __call__(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-L", self.socket, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def shows(self, *words: str, gone: str = "\0", limit_s: float = 60.0) -> str:
        """The screen, once it shows all the words, and one no more."""
        deadline = time.monotonic() + limit_s
        while True:
            screen = self("capture-pane", "-p")
            if all(word in screen for word in words) and gone not in screen:
                return screen
            assert time.monotonic() < deadline, f"{words} not on the screen:\n{screen}"
            time.sleep(0.05)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: no terminal to draw in")
    found = Terminal(f"foundry-{tmp_path.name}-{tmp_path.stat().st_ino}")
    yield found
    subprocess.run(["tmux", "-L", found.socket, "kill-server"], capture_output=True)


@pytest.mark.slow
def test_a_terminal_shows_a_run_that_another_process_works_on(
    terminal: Terminal, make_request: Callable[..., SolveRequest], tmp_path: Path
) -> None:
    """Watch it, talk to it, see what came of the words, leave it alone."""
    request = make_request(400, islands=4, effort="deep")
    conftest = Path(__file__).parents[1] / "conftest.py"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(conftest), encode(request), str(tmp_path / "log")], cwd=ROOT
    )
    try:
        foundry = f"{sys.executable} -m foundry.cli agent"
        command = f"{foundry} watch last --runs {request.runs}; {foundry} chat last --runs {request.runs}; sleep 100"
        while not list(Path(request.runs).glob("*/inbox.sqlite")):
            time.sleep(0.02)
        terminal("new-session", "-d", "-x", "80", "-y", "24", command)
        terminal.shows("0 fusion", "1 memory", "best c", "best so far", "sync 3", "say something to the experts")
        terminal("send-keys", "@tiling unroll 4", "Enter")
        terminal.shows("d1: From the next step, the tiling expert will use unroll 4")
        terminal("send-keys", "Escape")
        screen = terminal.shows("d1 @tiling unroll 4  taken by @", " -> c")
        assert len(screen.splitlines()) <= 24
        terminal("send-keys", "exit", "Enter")
        terminal.shows(">", gone="sync 3")
        for key in ("@ti", "Tab", "avo", "Tab", "unr", "Tab", "8"):  # one after another, as somebody types
            terminal("send-keys", key)
        terminal.shows("> @tiling avoid unroll 8")
        terminal("send-keys", "Enter")
        terminal.shows("d2: From the next step, the tiling expert will never use unroll 8.")
        terminal.shows("\nd2 taken by ")
        assert child.poll() is None, "who only watches and talks ends nothing"
    finally:
        child.kill()
        child.wait()
    run = RunDirectory.inspect(next(Path(request.runs).iterdir()))
    assert [item.text for item in run.inbox.read()] == ["@tiling unroll 4", "@tiling avoid unroll 8"]
    run.close()
