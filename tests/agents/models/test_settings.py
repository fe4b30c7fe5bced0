"""Which models a user wants: flags before the environment before foundry.toml, and one line for what makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foundry.agents.models.models import one_model
from foundry.agents.models.settings import read_models
from foundry.knowledge.errors import UsageError

FILE = """
model = "cheap"
tool_calls = 2

[experts]
diagnostician = ["strong"]

[models.cheap]
model = "qwen3-coder"
base_url = "http://localhost:8080/v1"
price = [0, 0]

[models.strong]
base_url = "https://relay.example/v1"
api_key_env = "RELAY_KEY"
price = "2.5,15"
answer_tokens = 20000
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    below = tmp_path / "project" / "tasks"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return tmp_path / "project"


def test_a_file_above_the_current_folder_names_models_for_experts(folder: Path) -> None:
    (folder / "foundry.toml").write_text(FILE)
    models = read_models()
    assert (models.of("tiling"), models.of("fusion")) == (("cheap",), ("cheap",))
    assert models.of("diagnostician") == ("strong",) and models.title == "cheap+strong"
    cheap, strong = models.specs
    assert (cheap.model, cheap.base_url, cheap.price.is_free) == ("qwen3-coder", "http://localhost:8080/v1", True)
    assert (strong.model, strong.options.key_env, strong.options.answer_tokens) == ("strong", "RELAY_KEY", 20000)
    assert strong.options.price == (2.5, 15.0) and {spec.options.tool_calls for spec in models.specs} == {2}


def test_flags_count_before_the_environment_and_that_before_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "foundry.toml").write_text(FILE)
    monkeypatch.setenv("FOUNDRY_MODEL", "gpt-5.4-mini,tiling=cheap,tiling=strong")
    monkeypatch.setenv("FOUNDRY_REQUEST_SECONDS", "60")
    monkeypatch.setenv("FOUNDRY_PRICE", "1,2")
    models = read_models(["fusion=gpt-5.4"], {"request_seconds": 600.0, "temperature": None})
    casts = {name: models.of(name) for name in ("tiling", "fusion", "diagnostician", "auditor")}
    assert casts == {
        "tiling": ("cheap", "strong"),  # from the environment
        "fusion": ("gpt-5.4",),  # from the flag
        "diagnostician": ("strong",),  # from the file
        "auditor": ("gpt-5.4-mini",),
    }
    assert {spec.options.request_s for spec in models.specs} == {600.0}
    assert {spec.options.price for spec in models.specs} == {(1.0, 2.0)}
    assert models.spec("cheap").model == "qwen3-coder"  # what only the file says stays


def test_the_playbook_takes_an_expert_or_all_of_them_back(folder: Path) -> None:
    (folder / "foundry.toml").write_text(FILE)
    models = read_models(["diagnostician=playbook"])
    assert models.of("diagnostician") == () and models.of("tiling") == ("cheap",)
    everyone = read_models(["playbook,diagnostician=playbook"])
    assert not everyone and everyone.title == "playbook"


def test_without_any_word_the_playbook_thinks() -> None:
    assert not read_models() and read_models(["gpt-5.4"]) == one_model("gpt-5.4")
    assert read_models(["a,b", "a"]).everyone == ("a", "b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model = 3", "model: Input should be a valid list"),
        ("temperature = 3", "temperature: Input should be less than or equal to 2"),
        ("[experts]\nwizard = 'a'", "there is no expert 'wizard'"),
        ("[models.a]\nprice = [1]", "models.a.price"),
        ("[models.a]\nprice = 'cheap'", "dollars per million tokens"),
        ("[models.a]\ncolour = 'red'", "known are base_url"),
        ("[models.a]\napi_key = 'sk-very-secret'", "name its environment variable as api_key_env"),
        ("[models.a]\napi_key_env = 'sk-very-secret'", "api_key_env: String should match pattern"),
        ("model = [", "cannot read"),
        ("# " + "x" * 70_000, "larger than 64 KB"),
    ],
)
def test_a_bad_file_is_one_line_that_shows_no_key(folder: Path, text: str, said: str) -> None:
    (folder / "foundry.toml").write_text(text)
    with pytest.raises(UsageError) as error:
        read_models()
    line = str(error.value)
    assert said in line and "foundry.toml" in line and "\n" not in line and "very-secret" not in line


@pytest.mark.parametrize(
    ("words", "flags", "environment", "said"),
    [
        (["wizard=a"], {}, {}, "--model: there is no expert 'wizard'"),
        (["tiling="], {}, {}, "--model 'tiling='"),
        ([""], {}, {}, "--model ''"),
        (None, {}, {"FOUNDRY_MODEL": "=a"}, "FOUNDRY_MODEL '=a'"),
        (["a"], {}, {"FOUNDRY_TEMPERATURE": "hot"}, "FOUNDRY_TEMPERATURE: Input should be a valid number"),
        (["a"], {"price": "nan,1"}, {}, "--price"),
        (["playbook"], {"base_url": "http://localhost/v1"}, {}, "--base-url is about a chat model"),
    ],
)
def test_a_bad_word_is_one_line(
    words: Any, flags: Any, environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as error:
        read_models(words, flags)
    assert said in str(error.value) and "\n" not in str(error.value)
