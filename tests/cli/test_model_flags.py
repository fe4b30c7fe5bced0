"""The options of `foundry agent solve` that are about the chat model."""

from __future__ import annotations

from pathlib import Path

import pytest

from foundry.cli import app

MODEL = ("--model", "scripted-1", "--base-url", "http://127.0.0.1:9/v1")


def solve(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["agent", "solve", "no-such-task.py", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--price", "2.5"), "2.5,15"),
        (("--price", "cheap,free"), "dollars per million tokens"),
        (("--price", "-1,2"), "greater than or equal to 0"),
        (("--price", "nan,2"), "finite number"),
        (("--reasoning-effort", "huge"), "minimal"),
        (("--temperature", "3"), "--temperature"),
        (("--temperature", "nan"), "--temperature"),
        (("--answer-tokens", "5"), "--answer-tokens"),
        (("--answer-tokens", "many"), "--answer-tokens"),
        (("--request-seconds", "0"), "--request-seconds"),
        (("--request-seconds", "inf"), "finite number"),
        (("--parallel-calls", "0"), "--parallel-calls"),
        (("--tool-calls", "-1"), "--tool-calls"),
        (("--dollars", "2"), "--price IN,OUT"),
        (("--api-key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY is not set"),
        (("--base-url", "relay"), "no endpoint"),
        (("--provider", "openai"), "--provider: OpenAI's interface is asked without a provider"),
        (("--replay", "none.jsonl"), "none.jsonl"),
        (("--record", "no-folder/talk.jsonl"), "no-folder/talk.jsonl"),
    ],
)
def test_a_bad_value_is_one_line(
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert solve(*MODEL, *words) == 2
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith("foundry: ") and said in line and told.out == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "flag",
    [
        ("--base-url", "http://127.0.0.1:9/v1"),
        ("--api-key-env", "HOME"),
        ("--price", "1,2"),
        ("--answer-tokens", "9000"),
        ("--request-seconds", "60"),
        ("--parallel-calls", "2"),
        ("--temperature", "0"),
        ("--reasoning-effort", "low"),
        ("--tool-calls", "2"),
    ],
)
def test_what_is_about_a_model_needs_one(flag: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert solve(*flag) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert flag[0] in line and "--model NAME" in line


def test_the_help_documents_every_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert solve("--help") == 0
    told = capsys.readouterr().out
    for flag in (
        "--api-key-env",
        "--price",
        "--answer-tokens",
        "--request-seconds",
        "--parallel-calls",
        "--tool-calls",
        "--provider",
        "--record",
        "--replay",
        "--ask-missing",
        "--calls",
        "--dry-run",
    ):
        assert flag in told
    assert "--temperature" in told and "--reasoning-effort" in told and "8192" in told and "180" in told
