"""The examples of CONTRIBUTING.md's ladder, run as they stand there."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.agents.conftest import Toy, ToyLibrary
from tests.cli.conftest import COMMAND, SHORT_END, TINY, TOY
from tests.exploits.museum import Museum, read_case, right_reasons
from tests.knowledge.compiler.algebra.run_graph import Sketch
from tests.knowledge.compiler.lowering import check

import foundry.agents.experts
from foundry.agents.expert import experts
from foundry.agents.situation import Situation
from foundry.knowledge.compiler.rules.builder import RULES
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.tools.process.zygote import Zygote

PAGE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
RUNGS = ("exhibit", "rule", "rewrite", "template", "expert", "target")


def run_example(name: str) -> dict[str, Any]:
    """The names that an example defines."""
    found: dict[str, Any] = {}
    exec(compile(EXAMPLES[name], f"CONTRIBUTING.md, {name}", "exec"), found)
    return found


def test_the_page_is_short_and_has_an_example_for_each_rung() -> None:
    assert tuple(EXAMPLES) == RUNGS and len(PAGE) <= 12_000
    issues = re.findall(r"^(\d+)\. ", PAGE.split("## Ten first issues")[1], re.MULTILINE)
    assert issues == [str(number) for number in range(1, 11)]


def test_the_exhibit_is_rejected_for_the_reason_that_it_names(
    tmp_path: Path, make_home: Callable[[], Path], zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOUNDRY_HOME", str(make_home()))
    path = tmp_path / "cheats/cpu/first_row.py"
    path.parent.mkdir(parents=True)
    path.write_text(EXAMPLES["exhibit"])
    museum, case = Museum(tmp_path, zygote), read_case(path)
    try:
        ruling = museum.verify(case)
    finally:
        museum.close()
    assert not ruling.accepted and right_reasons(case, ruling), ruling


def test_the_rule_gives_pytorch_s_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, "heaviside", raising=False)
    values = torch.randn(7, 9)
    values[0, :4] = torch.tensor([0.0, -0.0, torch.nan, torch.inf])
    for operands in ((values, torch.randn(9)), (values.double().T, torch.randn(9, 7).double())):
        monkeypatch.delitem(RULES, "heaviside", raising=False)
        assert len(check(torch.heaviside, *operands).steps) == 1  # without the rule PyTorch's decomposition is lowered
        monkeypatch.setitem(RULES, "heaviside", run_example("rule")["_heaviside"])
        check(torch.heaviside, *operands, steps=1)


def test_the_rewrite_leaves_the_same_numbers_with_less_work() -> None:
    double_negation = run_example("rewrite")["double_negation"]
    sketch = Sketch()
    once = sketch.call("aten.neg.default", sketch.input(3, 5))
    result = sketch.call("aten.relu.default", sketch.call("aten.neg.default", once))
    graph = sketch.graph(result)
    (changed,) = [found for op in graph.ops if (found := double_negation(graph, op)) is not None]
    assert [op.kind for op in changed.ops] == ["relu"]
    torch.testing.assert_close(sketch.run(changed), sketch.run(graph), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("lanes", [16, 8, 4, 3])
def test_the_template_compiles_for_every_choice(lanes: int, tmp_path: Path) -> None:
    tuning = Tuning({"lanes": lanes})
    text = run_example("template")["print_each"]("x[i] * 2.0f + 1.0f", tuning)
    assert tuning.values == {"lanes": 16 if lanes == 3 else lanes} and "@" not in text
    library = tmp_path / "each.so"
    command = ["g++", "-O2", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=text, text=True, check=True)
    values, out = np.arange(37, dtype=np.float32), np.empty(37, dtype=np.float32)
    pointer = ctypes.POINTER(ctypes.c_float)
    each = ctypes.CDLL(str(library)).each
    each(values.ctypes.data_as(pointer), out.ctypes.data_as(pointer), ctypes.c_long(37))
    assert (out == values * 2 + 1).all()


def test_the_expert_is_found_and_has_its_opinion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scheduler.py").write_text(EXAMPLES["expert"])
    monkeypatch.setattr(foundry.agents.experts, "__path__", [*foundry.agents.experts.__path__, str(tmp_path)])
    experts.cache_clear()
    try:
        scheduler = experts()["scheduler"]
    finally:
        experts.cache_clear()
    library = ToyLibrary()
    brief = Toy(library).brief()
    assert brief.lowered is not None
    moves, situation = library.moves(brief.lowered), Situation(brief)
    liked = [move for move in moves if scheduler.opinion(move, situation).weight > 1.0]
    assert liked and {move.aspect for move in liked} == {"parallel"}


def test_the_target_of_a_package_solves_a_task(tmp_path: Path, make_home: Callable[[], Path]) -> None:
    """The package is installed as any is: a module, and the metadata that names its entry point."""
    (tmp_path / "steady.py").write_text(EXAMPLES["target"])
    metadata = tmp_path / "steady-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: steady\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[foundry.targets]\nsteady = steady:TARGET\n")
    (tmp_path / "task.py").write_text(TOY)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "FOUNDRY_HOME": str(make_home())}
    solve = ("agent", "solve", "task.py", "--target", "steady", *TINY, *SHORT_END, "--no-learn", "--json")
    done = subprocess.run(
        [sys.executable, COMMAND, *solve],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    receipt = json.loads((tmp_path / summary["receipt"]).read_text())
    kernel = (tmp_path / summary["kernel"]).read_text()
    assert summary["verdict"] == "accepted" and receipt["device"]["target"] == "steady"
    assert "'target': 'steady'" in kernel and "-ffp-contract=off" in kernel
