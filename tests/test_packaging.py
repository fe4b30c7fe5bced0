"""The package as a user installs it: one import name, nothing forgotten, a quick command."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("agents", "graph", "tools", "knowledge")


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel built from the sdist, as a package index would hold them."""
    out = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


def test_every_package_is_listed() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = {"foundry"}
    for room in ROOMS:
        found |= {".".join(("foundry", *p.parent.relative_to(ROOT).parts)) for p in (ROOT / room).rglob("__init__.py")}
    assert found == set(config["tool"]["setuptools"]["packages"])


def test_the_top_level_is_the_layout() -> None:
    tracked = run("git", "ls-files", cwd=ROOT).stdout.split()
    assert tracked, "not a git checkout"
    allowed = {
        *ROOMS,
        *("pyproject.toml", "README.md", "cli.py", "tests", "__init__.py", "py.typed", "typings"),
        *("examples", "benchmarks", "docs", ".ci", "Makefile", "constraints.txt", ".gitignore"),
        *("LICENSE", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
        *(".github", ".pre-commit-config.yaml", "langgraph.json"),
    }
    assert {name.split("/")[0] for name in tracked} <= allowed


def test_wheel_and_sdist_install_only_foundry(built: Path, tmp_path: Path) -> None:
    """The wheel is built from the sdist."""
    (wheel,), (_,) = built.glob("*.whl"), built.glob("*.tar.gz")
    venv.create(tmp_path / "venv")  # without a pip of its own, which takes longer to install than Foundry
    python = tmp_path / "venv/bin/python"
    pip = run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    assert pip.returncode == 0, pip.stderr
    packages = tmp_path / "venv/lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    names = {path.name for path in packages.iterdir() if not path.name.endswith(".dist-info")}
    assert "foundry" in names and not names & {*ROOMS, "cli.py", "tests", "conftest.py"}
    for room in ROOMS:
        assert run(python, "-c", f"import {room}", cwd=tmp_path).returncode != 0
    # The dependencies come from this environment; foundry itself from the one just installed.
    probe = "import foundry.cli, foundry.graph, foundry.agents; print(foundry.__file__)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), *sys.path[1:]])}
    done = run(sys.executable, "-c", probe, cwd=tmp_path, env=env)
    assert done.returncode == 0 and str(packages) in done.stdout, done.stderr
    for kind in ("*.md", "*.h", "*.py.txt", "*.cuh"):
        there = {path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob(kind)}
        assert there, f"no {kind} package data in the tree"
        assert all((packages / "foundry" / path).exists() for path in there)


def test_rooms_are_not_importable_by_their_bare_names(tmp_path: Path) -> None:
    for room in ROOMS:
        done = run(sys.executable, "-c", f"import {room}", cwd=tmp_path)
        assert "ModuleNotFoundError" in done.stderr


def test_help_is_quick_and_imports_nothing_heavy(tmp_path: Path) -> None:
    probe = (
        "import sys; from foundry.cli import app\n"
        "heavy = {'torch', 'langgraph', 'chromadb', 'langchain_openai', 'numpy'} & sys.modules.keys()\n"
        "print(sorted(heavy))\n"
    )
    assert run(sys.executable, "-c", probe, cwd=tmp_path).stdout.strip() == "[]"
    command = Path(sys.executable).with_name("foundry")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(command, "--help", cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and "agent" in done.stdout and "verify" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0  # 0.3 s of CPU time usually
