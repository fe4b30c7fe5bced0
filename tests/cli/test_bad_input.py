"""Whatever is wrong, a user reads one line, a script reads the right exit code, and nothing is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from .conftest import TOY, Cli, Solved, rows, working_below

FORWARD = "return torch.relu(x * 2.0 + self.bias)"
INPUTS = "return [torch.randn(ROWS * SCALE, 256)]"
BAD = [  # one of each place: the task's code raises, its process dies, its outputs will not do
    (INPUTS, "raise ValueError('no data here')", ["toy.py", "line 18", "get_inputs", "no data here"]),
    ("ROWS = 64", "import os; os.kill(os.getpid(), 11)", ["SIGSEGV"]),
    (FORWARD, "import os; return x + int.from_bytes(os.urandom(2), 'big')", ["not deterministic"]),
]


def test_a_task_that_is_no_file(cli: Cli) -> None:
    assert cli.refuse("missing.py").is_one_line("missing.py")
    assert cli.refuse(cli.folder).is_one_line("folder")
    assert cli.here("verify", "missing.py", "toy.py").is_one_line("missing.py")
    assert not (cli.folder / "runs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        (TOY.replace("return [256]", "return [256"), ["toy.py", "line 22"]),
        (TOY.replace("class Model(nn.Module)", "class Net"), ["no class Model"]),
        (TOY.replace("def get_inputs", "def inputs"), ["no get_inputs"]),
        (TOY.replace("def forward", "def backward"), ["line 8", "no forward"]),
        ("\x00", ["toy.py"]),
    ],
)
def test_a_file_that_is_no_task(cli: Cli, text: str, words: list[str]) -> None:
    cli.write("toy.py", text)
    assert cli.refuse("toy.py").is_one_line(*words)
    assert not (cli.folder / "runs").exists()


@pytest.mark.parametrize(("before", "after", "words"), BAD)
def test_a_task_that_cannot_be_optimised(warm_cli: Cli, before: str, after: str, words: list[str]) -> None:
    assert before in TOY
    warm_cli.write("toy.py", TOY.replace(before, after, 1))
    done = warm_cli.refuse("toy.py", "--no-learn")
    assert done.is_one_line(*words)
    listed = warm_cli.here("agent", "runs").out.splitlines()
    assert len(listed) == 1 and listed[0].endswith(f"  -  failed: {done.err.strip().removeprefix('foundry: ')}")


def test_a_task_that_needs_more_memory_than_it_may_have(warm_cli: Cli) -> None:
    grows = "k = [torch.ones(1 << 22) for _ in range(2000)]; return [torch.randn(ROWS * SCALE, 256)]"
    warm_cli.write("toy.py", TOY.replace(INPUTS, grows))
    assert warm_cli.refuse("toy.py", "--no-learn", FOUNDRY_TASK_GB="1").is_one_line("1.0 GB", "FOUNDRY_TASK_GB")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ROWS = 64", "import time; time.sleep(1e6)"),
        (FORWARD, "import subprocess; subprocess.run(['sleep', '100000'], start_new_session=True)"),
    ],
)
def test_a_task_that_hangs_is_killed_with_its_children(warm_cli: Cli, before: str, after: str) -> None:
    warm_cli.write("toy.py", TOY.replace(before, after))
    done = warm_cli.refuse("toy.py", "--no-learn", FOUNDRY_TASK_SECONDS="2")
    assert done.is_one_line("did not finish in 2 s", "FOUNDRY_TASK_SECONDS")
    until(lambda: not working_below(warm_cli.folder), "the task and its children are gone")


@pytest.mark.parametrize(("name", "value"), [("FOUNDRY_TASK_SECONDS", "soon"), ("FOUNDRY_TASK_GB", "-1")])
def test_a_limit_that_is_no_number(cli: Cli, name: str, value: str) -> None:
    assert cli.refuse("toy.py", "--no-learn", **{name: value}).is_one_line(f"{name}={value}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("polcy = 'fair'", ["toy.toml", "polcy", "unknown key"]),
        ("tolerance = 'much'", ["toy.toml", "tolerance"]),
        ("tolerance = ", ["toy.toml", "TOML"]),
        ("extra_shapes = [{ ROW = 3 }]", ["toy.toml", "ROW"]),
        ("start = 'gone.py'", ["toy.toml", "gone.py"]),
        ("instructions = 'make it so'", ["instructions", "I do not understand 'make it so'", "chat model"]),
    ],
)
def test_options_that_are_wrong(cli: Cli, text: str, words: list[str]) -> None:
    cli.write("toy.toml", text)
    assert cli.refuse("toy.py").is_one_line(*words)


def test_an_instruction_with_a_typo_is_refused_before_anything_is_timed(warm_cli: Cli) -> None:
    warm_cli.write("toy.toml", 'instructions = "@tiling avoid unroll 8\\n@tiling blok 8"')
    done = warm_cli.refuse("toy.py", "--no-learn")
    assert done.is_one_line("'@tiling blok 8'", "No tunable called blok is in this run", "unroll")
    (run,) = (warm_cli.folder / "runs").iterdir()
    assert rows(run, "SELECT candidate FROM evaluations") == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--effort", "huge"], ["--effort huge", "quick"]),
        (["--strategy", "magic"], ["--strategy magic", "gradients"]),
        (["--target", "tpu"], ["--target tpu", "cuda"]),
        (["--policy", "kind"], ["--policy kind", "fair"]),
        (["--islands", "0"], ["--islands"]),
        (["--evaluations", "many"], ["--evaluations"]),
        (["--frob"], ["--frob"]),
        (["--scale", "2"], ["SCALE"]),
    ],
)
def test_options_that_do_not_exist(cli: Cli, words: list[str], told: list[str]) -> None:
    cli.write("bare.py", TOY.replace("SCALE = 1\n", "").replace(" * SCALE", ""))
    assert cli.here("agent", "solve", "bare.py", *words).is_one_line(*told)


def test_places_that_cannot_be_written(warm_cli: Cli) -> None:
    file = warm_cli.write("file", "")
    assert warm_cli.refuse("toy.py", "--runs", "file").is_one_line("file", "--runs")
    assert warm_cli.refuse("toy.py", "--store", "file").is_one_line("file", "--store")
    assert warm_cli.refuse("toy.py", "--no-learn", FOUNDRY_HOME=str(file)).is_one_line("file")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few hundred kilobytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", place], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_is_full(warm_cli: Cli, small_disk: Path) -> None:
    done = warm_cli.refuse("toy.py", "--no-learn", "--runs", small_disk)
    assert done.is_one_line("full", code=1) or done.is_one_line("No space", code=1)
    assert not working_below(small_disk)
    assert len(rows(next(small_disk.glob("toy-*")), "SELECT key FROM meta")) > 0


def test_a_store_that_is_corrupt(cli: Cli) -> None:
    store = cli.folder / "store"
    store.mkdir()
    (store / "journal.sqlite").write_bytes(b"garbage " * 1000)
    assert cli.refuse("toy.py", "--store", "store").is_one_line("journal.sqlite", "damaged")
    assert cli.here("knowledge", "list", "--store", "store").is_one_line("journal.sqlite", "damaged")
    assert (store / "journal.sqlite").read_bytes() == b"garbage " * 1000


def test_a_run_that_is_missing_or_corrupt(cli: Cli, solved: Solved) -> None:
    assert cli.here("agent", "resume", "last").is_one_line("no run")
    assert cli.here("agent", "resume", "gone").is_one_line("gone")
    assert cli.here("agent", "trace", "gone").is_one_line("gone")
    assert cli.here("agent", "chat", "gone", "status").is_one_line("gone")
    shutil.copytree(solved.run, cli.folder / "runs" / "bad")
    broken = cli.folder / "runs" / "bad" / "run.sqlite"
    for name in ("run.sqlite-wal", "run.sqlite-shm"):
        broken.with_name(name).unlink(missing_ok=True)
    broken.write_bytes(b"garbage " * 1000)
    for words in (["resume", "runs/bad"], ["trace", "runs/bad"], ["chat", "runs/bad", "status"]):
        assert cli.here("agent", *words).is_one_line("corrupt")
    assert cli.here("agent", "runs").out.startswith("no runs")
    assert broken.read_bytes() == b"garbage " * 1000


def test_a_machine_without_a_compiler(cli: Cli) -> None:
    bare = cli.folder / "bin"
    bare.mkdir()
    (bare / "python3").symlink_to(sys.executable)
    done = cli.solve("toy.py", PATH=str(bare))
    assert done.is_one_line("g++", "install", code=3)
    assert not (cli.folder / "runs").exists()


def test_an_endpoint_without_a_model(cli: Cli) -> None:
    done = cli.here("agent", "solve", "toy.py", "--base-url", "http://127.0.0.1:9/v1", "--no-learn")
    assert done.is_one_line("--model")
