"""Reading a task: nothing is executed, and each mistake ends in one line that names the file and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from foundry.knowledge.errors import TaskError
from foundry.knowledge.task import overridden_source
from foundry.tools.task.file import read_task

EXAMPLES = Path(__file__).parents[3] / "examples"

TASK = """\
import torch
import torch.nn as nn

ROWS = 4
SCALE = 1
SIZE = (ROWS * 2,
        3)


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.ones(ROWS * SCALE, SIZE[0])]
"""


def write(folder: Path, text: str, name: str = "job.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_reads_and_scales(path: Path) -> None:
    plain, scaled = read_task(path), read_task(path, scale=8)
    assert plain.name == path.stem
    assert scaled.overrides == {"SCALE": 8}
    assert plain.digest != scaled.digest


def test_reading_never_runs_the_file(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    read_task(write(tmp_path, TASK + f"\nopen({str(witness)!r}, 'w').close()\n"))
    assert not witness.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("def f(:\n    pass\n", "job.py, line 1: "),
        ("import torch\ndef get_inputs():\n    return []\n", "no class Model"),
        (TASK.replace("get_inputs", "inputs"), "no get_inputs"),
        (TASK.replace("def forward", "def fwd"), "Model has no forward"),
        (TASK.replace("class Model(nn.Module)", "class Model"), "not an nn.Module"),
        ("x = '\x00'\n", "job.py"),
    ],
)
def test_a_broken_task_is_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        read_task(write(tmp_path, text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_missing_file_folder_and_binary_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no task file"):
        read_task(tmp_path / "absent.py")
    with pytest.raises(TaskError, match="is a folder"):
        read_task(tmp_path)
    (tmp_path / "binary.py").write_bytes(b"\x80\xff\xfe")
    with pytest.raises(TaskError, match="not UTF-8"):
        read_task(tmp_path / "binary.py")


def test_scale_needs_the_constant_and_a_size(tmp_path: Path) -> None:
    path = write(tmp_path, TASK.replace("SCALE = 1", "").replace("ROWS * SCALE", "ROWS"))
    with pytest.raises(TaskError, match="no module constant SCALE"):
        read_task(path, scale=2)
    with pytest.raises(TaskError, match="not a size"):
        read_task(write(tmp_path, TASK), scale=0)


def test_options_beside_the_task(tmp_path: Path) -> None:
    path = write(tmp_path, TASK)
    write(
        tmp_path,
        'instructions = "keep it simple"\npolicy = "strict"\ntolerance = 1e-4\nmode = "eval"\n'
        "input_range = [-1.0, 1.0]\n[[extra_shapes]]\nROWS = 7\n",
        "job.toml",
    )
    options = read_task(path).options
    assert options.policy == "strict"
    assert options.extra_shapes == ({"ROWS": 7},)
    assert options.input_range == (-1.0, 1.0)
    assert options.mode == "eval"


def test_shared_options_apply_only_to_the_task_they_belong_to(tmp_path: Path) -> None:
    first = write(tmp_path, TASK)
    write(tmp_path, 'policy = "open"\n', "task.toml")
    assert read_task(first).options.policy == "open"  # alone in its folder
    second = write(tmp_path, TASK, "other.py")
    assert read_task(first).options.policy == "fair"
    write(tmp_path, 'task = "other.py"\npolicy = "open"\n', "task.toml")
    assert read_task(first).options.policy == "fair"
    assert read_task(second).options.policy == "open"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("polcy = 'fair'", "unknown key; known are task, instructions"),
        ("policy = 'nice'", "policy"),
        ("tolerance = -1", "tolerance"),
        ("extra_shapes = [{ROWZ = 1}]", "sets ROWZ, which is no module constant"),
        ("extra_shapes = [{ROWS = 0}]", "sizes are at least 1"),
        ("input_range = [2.0, 1.0]", "the lower first"),
        ("dtypes = ['complex64']", "complex64 is not one of"),
        ("start = 'nowhere.py'", "not a file"),
        ("= 3", "is not TOML"),
    ],
)
def test_wrong_options_name_the_key(tmp_path: Path, options: str, words: str) -> None:
    path = write(tmp_path, TASK)
    write(tmp_path, options, "job.toml")
    with pytest.raises(TaskError) as caught:
        read_task(path)
    assert words in str(caught.value)
    assert "job.toml" in str(caught.value)


def test_overriding_keeps_lines_and_what_follows_from_a_constant() -> None:
    text = overridden_source(TASK, {"ROWS": 9})
    assert text.count("\n") == TASK.count("\n")
    namespace: dict[str, object] = {}
    exec(text.split("class Model")[0].replace("import torch.nn as nn", "").replace("import torch", ""), namespace)
    assert namespace["SIZE"] == (18, 3)


def test_overriding_several_line_expressions_and_non_ascii_text() -> None:
    text = 'A = "é"; B = (1 +\n     2)  # two lines\nC = B + 1\n'
    changed = overridden_source(text, {"B": 40})
    namespace: dict[str, object] = {}
    exec(changed, namespace)
    assert namespace["C"] == 41
    assert changed.count("\n") == text.count("\n")


def test_constants_that_are_set_together_are_constants_too() -> None:
    text = "ROWS, (HEADS, WIDTH) = 768, (4, 2048)\nSIZE = ROWS * HEADS + WIDTH\n"
    namespace: dict[str, object] = {}
    exec(overridden_source(text, {"ROWS": 777, "WIDTH": 1}), namespace)
    assert (namespace["ROWS"], namespace["HEADS"], namespace["SIZE"]) == (777, 4, 777 * 4 + 1)
    for unsure in ("ROWS, HEADS = sizes()\n", "ROWS, *HEADS = 1, 2, 3\n", "ROWS = HEADS = 4\n"):
        with pytest.raises(TaskError, match="not a module constant"):
            overridden_source(unsure, {"ROWS": 2})


def test_overriding_what_is_not_a_constant() -> None:
    with pytest.raises(TaskError, match="COLUMNS is overridden but is not a module constant"):
        overridden_source(TASK, {"COLUMNS": 2})
