"""The real command on things that are no tasks, kernels, receipts or options: one line, the right code, at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.fuzz.garbage import OBJECTS
from tests.waiting import PATIENCE_S

from .conftest import TOY, Cli

KERNEL = TOY[: TOY.index("def get_inputs")].replace("class Model(", "class ModelNew(")
TEXTS: dict[str, bytes] = {
    "nested": b"x = " + b"-" * 100_000 + b"1\n",
    "a deep chain": b"x = " + b"1 + " * 900 + b"1\n",
    "null bytes": TOY.encode() + b"\0",
    "no UTF-8": TOY.encode().replace(b"ROWS", b"R\xd6WS"),
    "a huge number": b"x = " + b"9" * 100_000 + b"\n",
    "megabytes": b"x = 1\n" * 400_000,
    "one long line": b"x = '" + b"a" * 2_000_000 + b"'\n",
}


def made(cli: Cli, name: str, kind: str) -> Path:
    path = cli.folder / name
    path.unlink(missing_ok=True)
    if kind in OBJECTS:
        OBJECTS[kind](path)
    else:
        path.write_bytes(TEXTS[kind])
    return path


@pytest.mark.parametrize("kind", ["pipe", "endless device", "link to itself", "a terabyte", *TEXTS])
def test_a_task_and_a_receipt_that_are_none(cli: Cli, kind: str) -> None:
    cli.write("kernel.py", KERNEL)
    begun = time.monotonic()
    made(cli, "bad.py", kind)
    assert cli.here("verify", "bad.py", "kernel.py").is_one_line("bad.py")
    assert cli.here("verify", "toy.py", "kernel.py", "--receipt", "bad.py").is_one_line("bad.py")
    assert time.monotonic() - begun < PATIENCE_S  # well below a second on a quiet machine


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        *(("pipe", 2), ("socket", 2), ("endless device", 2), ("a terabyte", 2), ("no UTF-8", 2), ("megabytes", 2)),
        *(("empty", 1), ("nested", 1), ("a deep chain", 1), ("null bytes", 1), ("a huge number", 1)),
    ],
)
def test_a_kernel_that_is_none(cli: Cli, kind: str, code: int) -> None:
    made(cli, "bad.py", kind)
    done = cli.here("verify", "toy.py", "bad.py")
    if code == 2:
        assert done.is_one_line("bad.py")
    else:  # it can be read and judged: it fails
        assert done.code == 1 and done.err == "" and done.out.startswith("failed on cpu")
        assert "Traceback" not in done.out and len(done.out.splitlines()) <= 4


@pytest.mark.parametrize("kind", ["pipe", "endless device", "folder", "random bytes"])
def test_options_that_are_none(cli: Cli, kind: str) -> None:
    OBJECTS[kind](cli.folder / "toy.toml")
    cli.write("kernel.py", KERNEL)
    assert cli.here("verify", "toy.py", "kernel.py").is_one_line("toy.toml")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--scale", "9" * 30], "--scale"),
        (["--scale", "-1"], "--scale"),
        (["--seed", "9" * 30], "--seed"),
        (["--seed", "0x1"], "--seed"),
        (["--min-speedup", "fast"], "--min-speedup"),
        (["--min-speedup", "-1"], "--min-speedup"),
        (["--write-receipt", "no/such/folder/r.json"], "no folder"),
        (["--write-receipt", "/dev/null"], "no regular file"),
        (["--write-receipt", "."], "no regular file"),
        (["--receipt", ""], "directory"),
        (["--target", ""], "--target"),
    ],
)
def test_option_values_that_are_none(cli: Cli, words: list[str], told: str) -> None:
    cli.write("kernel.py", KERNEL)
    assert cli.here("verify", "toy.py", "kernel.py", *words).is_one_line(told)


@pytest.mark.parametrize("name", [b"two\nlines.py", b"\xff\xfe.py", b"\x1b[31mred.py", b"n" * 250 + b".py"])
def test_names_that_are_strange(cli: Cli, name: bytes) -> None:
    assert cli("verify", os.fsdecode(name), "toy.py").is_one_line("no task file")


def test_a_task_whose_name_is_no_text(cli: Cli) -> None:
    (cli.folder / os.fsdecode(b"\xff.py")).write_text(TOY)
    assert cli("verify", os.fsdecode(b"\xff.py"), "toy.py").is_one_line("UTF-8")
