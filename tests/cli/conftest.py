"""The real command, in a process of its own where the process is asked about, with home, build cache, store and runs
below a temporary folder."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.agents.chat.scripted_server import ScriptedServer, answer, garbage
from tests.conftest import share
from tests.waiting import PATIENCE_S

from foundry.cli import app
from foundry.graph.run import request
from foundry.tools.process.zygote import Zygote

from .command import UNTUNED_EFFORTS

TOY = """import torch
from torch import nn

ROWS = 64
SCALE = 1


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.relu(x * 2.0 + self.bias)


def get_inputs():
    return [torch.randn(ROWS * SCALE, 256)]


def get_init_inputs():
    return [256]
"""
SHORT_END = ("--finalists", "1", "--no-compile")  # the winner is proven all the same; the rest of the end is left out
TINY = ("--evaluations", "3", "--minutes", "0.2", "--islands", "2")
LIMIT_S = 600.0
COMMAND = Path(__file__).with_name("command.py")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def is_one_line(self, *words: str, code: int = 2) -> bool:
        """One line on standard error that holds all the words, nothing on standard output, this exit code."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("foundry: "), self.err
        assert self.out == ""
        assert self.code == code, (self.code, self.err)
        for word in words:
            assert word in lines[0]
        return True


@dataclass
class Cli:
    """Runs `foundry` in `folder`; `env` adds to the environment. With a `zygote` what runs in this process may search
    and judge: it takes the tests' warm process and is as brief as the command in a process of its own."""

    folder: Path
    home: Path
    zygote: Zygote | None = None
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        own = {"FOUNDRY_HOME": str(self.home), "FOUNDRY_BUILD_CACHE": str(self.home / "build"), "TERM": "dumb"}
        return {**os.environ, **own, **self.env}

    def __call__(self, *words: object, stdin: str = "", **env: str) -> Done:
        """In a process of its own: what works, waits, ends or leaves something behind."""
        child = self.start(*words, **env)
        out, err = child.communicate(stdin, timeout=LIMIT_S)
        return Done(child.returncode, out, err)

    def here(self, *words: object, stdin: str = "", **env: str) -> Done:
        """In this process, which has imported everything: whatever is not about how a process works, waits or ends."""
        out, err = StringIO(), StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            for name, value in {**self.environment, **env}.items():
                patch.setenv(name, value)
            if self.zygote is not None:
                share(self.zygote, patch)
                for name, untuned in UNTUNED_EFFORTS.items():
                    patch.setitem(request.EFFORTS, name, untuned)
            patch.chdir(self.folder)
            patch.setattr(sys, "stdin", StringIO(stdin))
            app([*map(str, words)], prog_name="foundry")
        return Done(int(end.value.code or 0), out.getvalue(), err.getvalue())

    def start(self, *words: object, **env: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, COMMAND, *map(str, words)],
            cwd=self.folder,
            env={**self.environment, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(child)
        return child

    def solve(self, task: object, *more: object, **env: str) -> Done:
        return self("agent", "solve", task, *TINY, *more, "--json", **env)

    def refuse(self, task: object, *more: object, **env: str) -> Done:
        """`solve` in this process."""
        return self.here("agent", "solve", task, *TINY, *more, "--json", **env)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def close(self) -> None:
        for child in self.started:
            if child.poll() is None:
                child.kill()
            child.communicate()


@pytest.fixture(scope="session")
def home(make_home: Callable[[], Path]) -> Path:
    """$FOUNDRY_HOME and the build cache of all tests here."""
    return make_home()


@pytest.fixture
def warm_cli(cli: Cli, zygote: Zygote) -> Cli:
    """`cli` whose `here` may search and judge."""
    return replace(cli, zygote=zygote)


@pytest.fixture
def cli(tmp_path: Path, home: Path) -> Iterator[Cli]:
    """A command line in an empty folder with the toy task and a store of its own."""
    made = Cli(tmp_path, home)
    made.write("toy.py", TOY)
    yield made
    made.close()


@dataclass(frozen=True)
class Solved:
    """Two runs of the toy task that worked at the same time, on one store and in one folder of runs: the first in a
    process of its own; a chat model drove tiling and the auditor of the second. Fusion has no move for the toy:
    the model could choose none there, and is asked where a busy machine makes launches look slow."""

    cli: Cli
    first: Done
    second: Done
    server: ScriptedServer

    @property
    def run(self) -> Path:
        return self.cli.folder / str(self.first.json["run"])


@pytest.fixture(scope="session")
def solved(tmp_path_factory: pytest.TempPathFactory, home: Path, zygote: Zygote) -> Iterator[Solved]:
    """The solved run that the tests read; nobody may change it."""
    cli = Cli(tmp_path_factory.mktemp("solved"), home, zygote, {"FOUNDRY_TEST_SECRET": "hidden"})
    cli.write("toy.py", TOY)
    step = {"rationale": "fewer rows in flight", "expected": "1.1x", "edits": [], "source": "", "cites": []}
    server = ScriptedServer([answer({**step, "moves": [0]}), garbage(), answer({**step, "moves": [1]})]).start()
    words = ("agent", "solve", "toy.py", "--store", "store", "--runs", "runs", "--islands", "1", "--json")
    limits = ("--evaluations", "6", "--minutes", "20", *SHORT_END)
    model = ("--model", "tiling=scripted-1,auditor=scripted-1", "--base-url", server.url, *limits)
    playbook = ("--evaluations", "3", "--minutes", "20", *SHORT_END)
    try:
        child = cli.start(*words, *playbook)
        second = cli.here(*words, *model)
        out, err = child.communicate(timeout=LIMIT_S)
        yield Solved(cli, Done(child.returncode, out, err), second, server)
    finally:
        server.stop()
        cli.close()


def rows(run: Path, statement: str) -> list[tuple[Any, ...]]:
    """Rows of a run's run.sqlite, as any user may read it."""
    connection = sqlite3.connect(f"file:{run / 'run.sqlite'}?mode=ro", uri=True, timeout=10)
    try:
        return connection.execute(statement).fetchall()
    except sqlite3.OperationalError:  # not yet written
        return []
    finally:
        connection.close()


def working_below(folder: Path) -> list[int]:
    """Processes whose working directory or arguments are below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            at = str((entry / "cwd").readlink())
        except OSError:
            continue
        if state != "Z" and at.startswith(str(folder)):
            found.append(int(entry.name))
    return found


def interrupt(child: subprocess.Popen[str]) -> Done:
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=PATIENCE_S)
    return Done(child.returncode, out, err)


@contextmanager
def interrupting(fact: Callable[[], Any]) -> Iterator[None]:
    """Ctrl-C for what runs in this process, as soon as a fact is true, which it must not be before the search goes."""
    over = threading.Event()

    def wait() -> None:
        while not over.wait(0.1):
            if fact():
                os.kill(os.getpid(), signal.SIGINT)
                return

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        waiting.join()
