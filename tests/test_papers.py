"""The project's papers say what the code is: versions, the picture of the graph, and no document that is not here."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from foundry.agents.expert import experts
from foundry.graph.picture import draw
from foundry.graph.run import events, run_directory
from foundry.knowledge.experience import journal, variants
from foundry.tools.protocol import rules as protocol
from foundry.tools.verify import receipt

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
PAPERS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", *PAGES)


def between(text: str, mark: str) -> str:
    found = re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", text, re.DOTALL)
    assert found, f"no part is marked {mark}"
    return found[1]


def test_the_changelog_names_the_versions_of_the_code() -> None:
    rows = re.findall(r"^\| ([\w ]+) \| ([\w.-]+) \|", between((ROOT / "CHANGELOG.md").read_text(), "versions"), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dict(row for row in rows if row[0] != "what") == {
        "package": project["version"],
        "protocol": protocol.PROTOCOL_VERSION,
        "receipt schema": str(receipt.SCHEMA_VERSION),
        "run format": run_directory.FORMAT,
        "event table": events.VERSION,
        "experience store": str(journal.VERSION),
        "prompt archive": str(variants.VERSION),
    }


def test_the_picture_of_the_graph_is_the_compiled_graph() -> None:
    picture = between((ROOT / "ARCHITECTURE.md").read_text(), "graph")
    assert picture == f"```mermaid\n{draw()}```\n"  # python -m foundry.graph.picture prints it
    for expert in experts():
        assert f"island_{expert}([{expert}])" in picture


def test_the_glossary_is_short_and_in_order() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "ARCHITECTURE.md").read_text().split("## Glossary")[1], re.M)
    words = [row.strip() for row in rows if row.strip() not in ("word", "---")]
    assert words == sorted(set(words)) and 20 <= len(words) <= 25


def test_no_text_cites_a_document_that_is_not_in_the_repository() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    broken = []
    for name in tracked:
        path = ROOT / name
        if path.suffix not in {".py", ".md", ".toml", ".yml", ".cpp", ".cu", ".h", ".cuh", ".txt"} or path.is_symlink():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if name != "tests/test_papers.py" and re.search(r"\bdesign(\.md)?,? (section|§)|\.\./shared\b", text):
            broken.append(f"{name} cites a design document")
        if path.suffix == ".md" and not name.startswith(("agents/prompts", "knowledge/cards")):
            for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
                if not (path.parent / link).exists():
                    broken.append(f"{name} links to {link}")
    assert not broken


@pytest.mark.parametrize("name", PAPERS)
def test_every_path_that_a_paper_names_exists(name: str) -> None:
    """A path in backticks that begins with a room is a file or folder of the tree."""
    text = (ROOT / name).read_text()
    missing = []
    for quoted in re.findall(r"`((?:agents|graph|tools|knowledge|tests|benchmarks|examples)/[\w./*{},<>-]*)`", text):
        pattern = re.sub(r"\{[^}]*\}|<[^>]*>", "*", quoted).rstrip("/")
        if not any(ROOT.glob(pattern)):
            missing.append(quoted)
    assert not missing


def test_metadata_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0" and "Apache License" in (ROOT / "LICENSE").read_text()
    assert project["authors"] == [{"name": "The Foundry developers"}]
    systems = [item for item in project["classifiers"] if item.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]


def test_the_workflow_runs_the_readme_s_test_command() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    commands = [step.get("run", "") for step in workflow["jobs"]["test"]["steps"]]
    assert any("make" in command and "'test'" in command for command in commands)
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {"test", "test-all", "environment", "lint"} <= {name for rule in rules for name in rule.split()}


def test_the_issue_forms_ask_for_what_a_report_needs() -> None:
    for name in ("cheat-accepted", "honest-rejected"):
        form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
        asked = {field.get("id") for field in form["body"]}
        assert {"kernel", "task", "verdict", "doctor"} <= asked


def test_the_pre_commit_tools_are_those_of_the_makefile() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {hook["id"] for repository in config["repos"] for hook in repository["hooks"]}
    lint = (ROOT / "Makefile").read_text().split("lint:")[1].split("\n\n")[0]
    assert hooks == {"ruff", "ruff-format", "mypy"} and all(
        word in lint for word in ("ruff check", "ruff format", "mypy")
    )
