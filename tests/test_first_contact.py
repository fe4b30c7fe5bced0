"""The blind sets stay whole: the archive is the one of its checksum, and each indexed file and its task are in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def unpack(benchmarks: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(benchmarks / "first_contact.py"), "--unpack", str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


def indexed(folder: Path, kind: str) -> list[str]:
    lines = (folder / kind / "INDEX.md").read_text(encoding="utf-8").splitlines()
    return [line.split("|")[1].strip().strip("`") for line in lines if line.startswith(("| cpu/", "| cuda/"))]


def test_the_archive_holds_every_file_of_its_index(tmp_path: Path) -> None:
    done = unpack(BENCHMARKS, tmp_path)
    assert done.returncode == 0, done.stderr
    found = {kind: [name for name in indexed(tmp_path, kind)] for kind in ("honest", "cheats")}
    assert {kind: len(names) for kind, names in found.items()} == {"honest": 281, "cheats": 880}
    assert all((tmp_path / kind / name).is_file() for kind, names in found.items() for name in names)
    smoke = BENCHMARKS / "first_contact" / "smoke"
    for path in smoke.rglob("*.py"):
        assert path.read_bytes() == (tmp_path / path.relative_to(smoke)).read_bytes()


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    shutil.copy(BENCHMARKS / "first_contact.py", tmp_path)
    shutil.copytree(BENCHMARKS / "first_contact", tmp_path / "first_contact", ignore=shutil.ignore_patterns("smoke"))
    with (tmp_path / "first_contact" / "sets.tar.xz").open("ab") as archive:
        archive.write(b"x")
    done = unpack(tmp_path, tmp_path / "sets")
    assert done.returncode != 0 and "does not match its checksum" in done.stderr
    assert not (tmp_path / "sets").exists()
