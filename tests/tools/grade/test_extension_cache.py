"""Files that compile themselves keep their builds by their text; no other file may write there, and no stale lock
stays."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from foundry.knowledge.candidate import Build
from foundry.tools.grade.host import folders as extension_cache
from foundry.tools.grade.host.folders import KEPT, extension_folder, lock_folder, prepare_folders
from foundry.tools.grade.host.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

SELF_BUILDING = "from torch.utils.cpp_extension import load_inline\n"
FOUNDRYS_OWN = 'import torch, cupy\nFOUNDRY = {"target": "cpu"}\nSOURCE = "int f();"\n'
COMPILING = (
    SELF_BUILDING
    + """
import json, os
with open(os.environ["TORCH_EXTENSIONS_DIR"] + "/made.json", "w") as made:
    seen = {"gpus": os.environ["CUDA_VISIBLE_DEVICES"], "architectures": os.environ["TORCH_CUDA_ARCH_LIST"]}
    made.write(json.dumps(seen))
class ModelNew: pass
"""
)
TASK = read_task(Path(__file__).parents[3] / "examples" / "softmax.py")
GPU = replace(describe("cuda"), arch="sm_90")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "cache"


def test_only_a_text_that_compiles_itself_keeps_builds_and_only_its_own(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    mine, other = prepare_folders(SELF_BUILDING, scratch), prepare_folders(SELF_BUILDING + "# other", scratch)
    folder = str(extension_folder(SELF_BUILDING))
    assert mine.environment["TORCH_EXTENSIONS_DIR"] == folder and folder in mine.sandbox.writable
    assert folder not in other.sandbox.writable
    for handle in (*mine.locks, *other.locks):
        os.close(handle)
    for text in (FOUNDRYS_OWN, "import torch", "def ("):
        plain = prepare_folders(text, scratch)
        assert plain.sandbox.writable == (str(scratch),) and plain.locks == []
        assert all(str(scratch) in plain.environment[name] for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR"))


def test_a_lock_left_by_a_killed_compiler_goes_and_a_living_ones_stays() -> None:
    folder = extension_folder(SELF_BUILDING)
    first = lock_folder(folder)
    (folder / "my_kernel").mkdir()
    lock = folder / "my_kernel" / "lock"
    lock.touch()
    second = lock_folder(folder)
    assert lock.exists()
    os.close(first)
    os.close(second)
    os.close(lock_folder(folder))
    assert not lock.exists()


def test_builds_unused_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT > 100
    monkeypatch.setattr(extension_cache, "KEPT", 2)
    folders = [extension_folder(str(number)) for number in range(5)]
    for age, folder in enumerate(folders):
        os.close(lock_folder(folder))
        os.utime(folder, (age, age))
    os.close(lock_folder(extension_folder("last")))
    assert [folder.exists() for folder in folders] == [False, False, False, True, True]


def test_a_file_that_compiles_itself_does_so_before_the_device_is_held(tmp_path: Path, zygote: Zygote) -> None:
    """Its process sees no GPU, is asked for the GPU's architecture, and ends at its limit; what it made stays."""
    grader = Grader(TASK, GPU, tmp_path, seed=0, zygote=zygote, owns_zygote=False, load_limit_s=PATIENCE_S)
    try:
        grader.compile_ahead(COMPILING, Build(True, 0.0))
        made = json.loads((extension_folder(COMPILING) / "made.json").read_text())
        assert made == {"gpus": "", "architectures": "9.0+PTX"}
        start = time.monotonic()
        hanging = Grader(TASK, GPU, tmp_path, seed=0, zygote=zygote, owns_zygote=False, load_limit_s=0.5)
        hanging.compile_ahead(COMPILING + "while True: pass\n", Build(True, 0.0))
        assert time.monotonic() - start < PATIENCE_S
        grader.compile_ahead(FOUNDRYS_OWN, Build(True, 0.0))
        assert not list(tmp_path.glob("workers-*/runner-*"))
    finally:
        grader.close()
