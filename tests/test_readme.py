"""README and the pages below docs/ say what the code does."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.waiting import PATIENCE_S

from foundry.agents.directives import FORMS, forms
from foundry.agents.models.settings import read_models
from foundry.cli import app
from foundry.graph.doors.bench.results import TaskResult
from foundry.graph.run.summary import Summary
from foundry.tools.protocol.rules import PROTOCOL_VERSION
from foundry.tools.task.file import OptionsFile

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
README_CHARACTERS = 9_000  # a first screen, not a manual: everything else has a page below docs/


def page(name: str) -> str:
    """One page of the documentation."""
    return (ROOT / "docs" / f"{name}.md").read_text()


def test_the_readme_stays_short_and_links_every_page() -> None:
    assert len(README) <= README_CHARACTERS
    linked = set(re.findall(r"\]\(docs/(\w+)\.md\)", README))
    assert linked >= {path.stem for path in (ROOT / "docs").glob("*.md")}


def test_the_steering_language_is_the_parser_s() -> None:
    shown = re.search(r"<!-- forms -->\n```\n(.*?)```\n<!-- /forms -->", page("steering"), re.DOTALL)
    assert shown and FORMS
    assert [line.strip() for line in shown[1].splitlines()] == [line.strip() for line in forms().splitlines()]


def test_every_command_of_the_readme_exists(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [README, *(path.read_text() for path in (ROOT / "docs").glob("*.md"))]
    found = re.findall(r"^foundry ((?:agent |knowledge )?\w+)", "\n".join(pages), re.MULTILINE)
    commands = {tuple(words.split()) for words in found}
    assert len(commands) >= 6
    for words in commands:
        with pytest.raises(SystemExit) as end:
            app([*words, "--help"])
        assert end.value.code == 0, (words, capsys.readouterr().err)


def test_every_option_and_argument_says_what_it_is_for() -> None:
    def silent(command: Any, name: str) -> list[str]:
        own = [f"{name} {one.name}" for one in command.params if one.name != "help" and not getattr(one, "help", None)]
        below = getattr(command, "commands", {}).items()
        return [*own, *(line for word, other in below for line in silent(other, f"{name} {word}"))]

    assert silent(typer.main.get_command(app), "foundry") == []


def fields_of(command: str) -> set[str]:
    """The fields in the first column of a command's table of docs/json.md."""
    part = page("json").split(f"\n## `{command}")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(cells)))


def test_the_contract_of_solve_is_the_summary_s() -> None:
    named = fields_of("foundry agent solve TASK --json")
    assert {"run", "verdict", "speedup", "speedup_ci95", "evaluations", "wall_s", "kernel", "receipt"} <= named
    assert named <= {field.name for field in dataclasses.fields(Summary)}


def test_the_contract_of_bench_is_the_result_line_s() -> None:
    assert fields_of("foundry bench") == {field.name for field in dataclasses.fields(TaskResult)}


def test_the_contract_is_that_of_the_protocol_and_every_link_leads_somewhere() -> None:
    contract = ROOT / "docs/contract.md"
    assert f"`{PROTOCOL_VERSION}`" in contract.read_text() and "`own-strides`" in contract.read_text()
    papers = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "ARCHITECTURE.md")
    for paper in (*papers, ROOT / "tests/exploits/README.md"):
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", paper.read_text()):
            assert "://" in target or (paper.parent / target).exists(), (paper.name, target)


def test_every_example_the_readme_names_exists() -> None:
    for path in re.findall(r"examples/\w+\.py", README):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(("name", "kind"), [("cpu", "json"), ("h200", "jsonl")])
def test_the_measured_table_is_the_one_of_the_result_file(name: str, kind: str) -> None:
    results = ROOT / f"benchmarks/results/{name}.{kind}"
    command = [sys.executable, str(ROOT / "benchmarks/examples.py"), "--table", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    shown = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- /{name} -->", page("results"), re.DOTALL)
    assert shown and shown[1].strip() == done.stdout.strip()


def test_what_the_readme_says_of_experience_is_what_its_data_says() -> None:
    """An effect may be claimed once the sign test over the recorded rounds shows one."""
    rounds = [str(ROOT / "benchmarks/results" / name) for name in ("cpu.json", "cpu-warm.json")]
    command = [sys.executable, str(ROOT / "benchmarks/examples.py"), "--compare", *rounds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    found = re.search(r"fewer in (\d+), more in (\d+), equal in (\d+); sign test p = ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    fewer, more, equal, p = found.groups()
    told = " ".join(page("results").split())
    assert f"in {fewer} examples, more in {more} and as many in {equal} (sign test p = {p})" in told
    assert float(p) < 0.05 or "has not been shown" in told


def test_the_settings_file_of_the_readme_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = [text for text in re.findall(r"```toml\n(.*?)```", page("experts"), re.DOTALL) if "[experts]" in text]
    (tmp_path / "foundry.toml").write_text(shown)
    monkeypatch.chdir(tmp_path)
    models = read_models()
    assert [models.of(name) for name in ("tiling", "diagnostician")] == [("mini", "local"), ("gpt-5.4",)]
    assert models.spec("local").price.is_free and {spec.options.request_s for spec in models.specs} == {300.0}
    assert read_models(["cheap,diagnostician=strong"]).of("diagnostician") == ("strong",)


def test_every_option_of_a_task_is_listed() -> None:
    shown = re.search(r"```toml\n(.*?)```", page("tasks"), re.DOTALL)
    assert shown and set(tomllib.loads(shown[1])) == set(OptionsFile.model_fields)
    OptionsFile.model_validate(tomllib.loads(shown[1]))


def headings(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_every_link_to_a_heading_finds_it(name: str) -> None:
    path = ROOT / name
    for target, anchor in re.findall(r"\]\(([^):#]*)#([\w-]+)\)", path.read_text()):
        other = path.parent / target if target else path
        assert anchor in headings(other.read_text()), f"{name}: {target}#{anchor}"
