"""The generated pages docs/commands.md and docs/configuration.md match the code, and they name every variable."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE_S

from foundry.agents.models.settings import SettingsFile
from foundry.tools.task.file import OptionsFile

ROOT = Path(__file__).resolve().parents[1]
NOT_FOR_USERS = {"FOUNDRY_NAN", "FOUNDRY_INF"}  # constants of generated C++ and CUDA code


def test_the_reference_pages_are_up_to_date() -> None:
    """`python docs/reference.py` writes them anew."""
    command = [sys.executable, str(ROOT / "docs/reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_row_of_the_reference_lacks_its_meaning() -> None:
    for name in ("commands", "configuration"):
        rows = re.findall(r"^\| `.*\|$", (ROOT / f"docs/{name}.md").read_text(), re.MULTILINE)
        assert len(rows) > 20 and [row for row in rows if re.search(r"\| *\|$", row)] == []


def test_every_variable_and_every_key_is_in_the_configuration() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    named = {*SettingsFile.model_fields, *OptionsFile.model_fields}
    for folder in ("agents", "graph", "tools", "knowledge"):
        for path in (ROOT / folder).rglob("*.py"):
            constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            named |= {
                text for text in constants if isinstance(text, str) and re.fullmatch(r"FOUNDRY_[A-Z_]*[A-Z]", text)
            }
    assert len(named) > 20
    assert [name for name in sorted(named - NOT_FOR_USERS) if f"`{name}`" not in page] == []
