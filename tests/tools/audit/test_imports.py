"""A kernel may import what its task imports, while it is loaded and constructed, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.tools.audit.candidates import LAUNCH, candidate

from foundry.knowledge.ruling import rule
from foundry.tools.audit.text.source import shared_imports
from foundry.tools.grade.host.grader import thread_count
from foundry.tools.grade.host.workbench import open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task
from foundry.tools.verify.verify import VerifyReport, verify_in

PACKAGE = '''\
"""A package as models bring it: it sets a variable, loads a library of the system, and has layers."""
import ctypes
import os
import subprocess

import torch

os.environ.setdefault("LAYERS_CACHE_DIR", "/nowhere")
ctypes.CDLL("libm.so.6").cosh


class Scaled(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        from layers import drawing  # as packages load their parts late
        self.scale = torch.nn.Parameter(drawing.drawn(width))

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=1)
'''
IMPORT = "from layers import Scaled\n"
OWN_TASK = f"""\
import torch
import torch.nn as nn
{IMPORT}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scaled(100)

    def forward(self, x):
        return self.inner(x)


def get_inputs():
    return [torch.randn(40, 100)]
"""
LIKE_OTHERS = (
    candidate(LAUNCH.replace("self.scale", "self.inner.scale"), IMPORT + "\n" + OWN_TASK[OWN_TASK.index("class") :])
    .replace("class ModelNew(nn.Module)", "class ModelNew(Model)")
    .replace("        self.scale = nn.Parameter(torch.randn(100))\n", "")
)
CANDIDATES = {
    "the task's import": (LIKE_OTHERS, "correct", ""),
    "the task's import in forward": (
        LIKE_OTHERS.replace(IMPORT, "", 1)
        .replace("Scaled(100)", "nn.Module()\n        self.inner.scale = nn.Parameter(torch.randn(100))")
        .replace("x = x.contiguous()", f"{IMPORT.strip()}\n        x = x.contiguous()"),
        "not_allowed",
        "LAYERS_CACHE_DIR was changed",  # and not by the task's own import
    ),
    "another import in forward": (
        LIKE_OTHERS.replace("x = x.contiguous()", "import other_layers\n        x = x.contiguous()"),
        "not_allowed",
        "imports other_layers inside forward",
    ),
    "an import that the task does not make": (
        LIKE_OTHERS.replace(IMPORT, IMPORT + "import other_layers\n", 1),
        "not_allowed",
        "imports other_layers, which the task does not import",
    ),
    "the package does the work": (
        LIKE_OTHERS.replace("x = x.contiguous()", "x = torch.log(self.inner(x))").replace(
            "self.inner.scale.data_ptr()", "ONES.data_ptr()"
        ) + "\n\nONES = torch.ones(100)\n",
        "not_allowed",
        "_softmax",
    ),
    "a file of its own under the package's name": (
        LIKE_OTHERS.replace(
            IMPORT,
            "import sys\nos.mkdir('mine')\nopen('mine/layers.py', 'w').write(open(LAYERS).read())\n"
            "sys.path.insert(0, 'mine')\n" + IMPORT, 1,
        ),
        "correct",
        "",
    ),
    "a file of its own after the package was forgotten": (
        LIKE_OTHERS.replace(
            IMPORT,
            "import sys\nos.mkdir('mine')\nopen('mine/layers.py', 'w').write(open(LAYERS).read())\n"
            "sys.path.insert(0, 'mine')\ndel sys.modules['layers']\n" + IMPORT, 1,
        ),
        "not_allowed",
        "layers",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with two of them."""
    folder = tmp_path_factory.mktemp("venv") / "site-packages"
    (folder / "layers").mkdir(parents=True)
    (folder / "layers" / "__init__.py").write_text(PACKAGE)
    (folder / "layers" / "drawing.py").write_text(
        "import torch\n\n\ndef drawn(width):\n    return torch.randn(width)\n"
    )
    (folder / "other_layers.py").write_text("")
    return folder


@pytest.fixture(scope="module")
def judge(
    packages: Path, make_home: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], VerifyReport]]:
    folder = tmp_path_factory.mktemp("imports")
    (folder / "task.py").write_text(OWN_TASK)
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("FOUNDRY_HOME", str(make_home()))
        patch.syspath_prepend(str(packages))
        device = describe("cpu")
        warm = Zygote.start(threads=thread_count(device), environment={"PYTHONPATH": str(packages)})
        task = read_task(folder / "task.py")
        bench = runner.run(open_workbench(task, device, folder / "scratch", seed=1, zygote=warm))
        yield lambda text: runner.run(verify_in(bench, task, text, "fair", "screen"))
        runner.run(bench.aclose())
        warm.close()


@pytest.mark.parametrize("name", CANDIDATES)
def test_kernels_that_import(judge: Callable[[str], VerifyReport], packages: Path, name: str) -> None:
    text, outcome, words = CANDIDATES[name]
    report = judge(text.replace("LAYERS", repr(str(packages / "layers" / "__init__.py"))))
    assert rule(report.evaluation).outcome == outcome, report.reasons
    assert words in "; ".join(gate.evidence for gate in report.reasons)


def test_imports_that_a_file_shares_with_the_task() -> None:
    task = (
        "import layers.deep as deep\ntry:\n    from layers import (A,\n        B)\nexcept ImportError:\n    A = None\n"
        "class Model:\n    def __init__(self):\n        import layers.late\n"
    )
    shared = ["import layers.deep as deep", "from layers import B", "import layers.late"]
    assert shared_imports("import os\nfrom layers import B\n", task) == shared[1:2]
    assert shared_imports(task + "import layers", task) == [shared[0], "from layers import A, B", shared[2]]
    assert shared_imports("from layers import C\nimport layers\nimport layers.deep\n", task) == []
    assert shared_imports("def forward():\n    from layers import B\n", task) == []
    assert shared_imports("not python(", task) == [] == shared_imports("import layers", "also not(")


BESIDE_TASK = """\
import torch
import torch.nn as nn
from own.parts import doubled
from sizes import WIDTH


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(doubled(torch.randn(WIDTH)))

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=1)


def get_inputs():
    return [torch.randn(40, WIDTH)]
"""


async def test_modules_beside_the_task_are_imported_too(
    zygote: Zygote, make_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOUNDRY_HOME", str(make_home()))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("")
    (tmp_path / "own" / "parts.py").write_text("from .more import twice\n\n\ndef doubled(x):\n    return twice(x)\n")
    (tmp_path / "own" / "more.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "sizes.py").write_text("WIDTH = 100\n")
    (tmp_path / "task.py").write_text(BESIDE_TASK)
    shared = BESIDE_TASK[BESIDE_TASK.index("from own") : BESIDE_TASK.index("def get_inputs")]
    text = candidate(LAUNCH, shared).replace("class ModelNew(nn.Module)", "class ModelNew(Model)")
    text = text.replace("        self.scale = nn.Parameter(torch.randn(100))\n", "")
    assert "class ModelNew(Model)" in text and "randn(100)" not in text
    bench = await open_workbench(
        read_task(tmp_path / "task.py"), describe("cpu"), tmp_path / "s", seed=1, zygote=zygote
    )
    try:
        report = await verify_in(bench, read_task(tmp_path / "task.py"), text, "fair", "screen")
    finally:
        await bench.aclose()
    assert report.verdict == "accepted", report.reasons
