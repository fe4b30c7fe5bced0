"""What runs learnt, through the command line; and the doctor; access to a chat model."""

from __future__ import annotations

import json

from .conftest import Cli, Solved


def test_lessons_are_listed_found_shown_and_forgotten(solved: Solved, cli: Cli) -> None:
    store = solved.cli.folder / "store"
    listed = solved.cli.here("knowledge", "list", "--store", store, "--json").json
    assert len(listed) >= 4 and {record["task"] for record in listed} == {"toy"}
    assert cli.here("knowledge", "export", "all.jsonl", "--store", store).out.startswith(f"{len(listed)} lessons")
    lines = (cli.folder / "all.jsonl").read_text().splitlines()
    assert {json.loads(line)["id"] for line in lines} == {record["id"] for record in listed}

    mine = ("--store", "mine")
    assert cli.here("knowledge", "list", *mine).out.startswith("the store is empty")
    assert f"{len(listed)} new lessons" in cli.here("knowledge", "import", "all.jsonl", *mine).out
    assert "0 new lessons" in cli.here("knowledge", "import", "all.jsonl", *mine).out
    found = cli.here("knowledge", "search", "relu memory_bandwidth", "--limit", "3", *mine, "--json").json
    assert 1 <= len(found) <= 3 and found[0]["record"]["task"] == "toy"
    known = cli.here("knowledge", "credits", *mine, "--json").json
    lines = cli.here("knowledge", "credits", *mine).out.splitlines()
    assert len(lines) == len(known) and {credit["move"] for credit in known} <= {record["move"] for record in listed}
    assert cli.here("knowledge", "credits", "nobody", *mine).is_one_line("nobody")
    first = listed[0]["id"]
    shown = cli.here("knowledge", "show", f"x{first[:12]}", *mine)
    assert shown.code == 0 and shown.json["id"] == first
    assert "1 lessons forgotten" in cli.here("knowledge", "forget", first, "--reason", "test", *mine).out
    assert cli.here("knowledge", "show", first, *mine).is_one_line(first)
    assert f"{len(listed) - 1} lessons indexed" in cli.here("knowledge", "reindex", *mine).out
    assert "0 new lessons" in cli.here("knowledge", "import", "all.jsonl", *mine).out  # forgotten is forgotten


def test_what_is_no_lesson_is_refused(cli: Cli) -> None:
    cli.write("garbage.jsonl", "{]\n")
    assert cli.here("knowledge", "import", "garbage.jsonl", "--store", "mine").is_one_line("garbage.jsonl")
    assert cli.here("knowledge", "import", "gone.jsonl", "--store", "mine").is_one_line("gone.jsonl")
    assert cli.here("knowledge", "show", "xabc", "--store", "mine").is_one_line("xabc")
    assert cli.here("knowledge", "export", "gone/all.jsonl", "--store", "mine").is_one_line("gone/all.jsonl")


def test_the_doctor_names_what_is_here_and_what_is_missing(cli: Cli) -> None:
    findings = {finding["what"]: finding for finding in cli("doctor", "--json").json}
    assert {"python", "torch", "c++ compiler", "gpu"} <= set(findings)
    assert all(finding["state"] in ("ok", "limited", "missing") for finding in findings.values())
    (cli.folder / "empty").mkdir()
    bare = cli("doctor", PATH=str(cli.folder / "empty"))
    assert bare.code == 3 and bare.err == ""
    assert "missing  c++ compiler" in bare.out and "apt-get install g++" in bare.out


def test_a_model_without_access_is_refused(cli: Cli) -> None:
    done = cli.here("agent", "solve", "toy.py", "--model", "gpt", "--no-learn", OPENAI_API_KEY="", OPENAI_BASE_URL="")
    assert done.is_one_line("gpt", "OPENAI_API_KEY")
