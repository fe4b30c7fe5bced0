"""`foundry verify`: any pair, one verdict, one exit code."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import jsonschema

from foundry.tools.verify.receipt import content_digest

from .conftest import TOY, Cli, Solved

HONEST = TOY[: TOY.index("def get_inputs")].replace("class Model(", "class ModelNew(")


def test_the_command_of_a_receipt_measures_it_again(solved: Solved, tmp_path: Path) -> None:
    """The same kernel through both ends: what is looked at, and the floor, are those of the run that found it."""
    receipt = json.loads((solved.run / "receipt.json").read_text())
    program, *words = shlex.split(receipt["command"])
    assert program == "foundry" and words[0] == "verify" and "--receipt" in words
    done = solved.cli.here(*words, "--json", "--write-receipt", tmp_path / "again.json")
    document = done.json
    assert document["verdict"] == "accepted" and document["reasons"] == []
    assert document["standing"] in ("confirmed", "not confirmed") and "measured now" in document["standing_evidence"]
    assert done.code == (0 if document["standing"] == "confirmed" else 1)
    low, high = document["speedup_ci95"]
    assert low <= document["speedup"] <= high
    assert document["baseline_ms"] > 0 and document["candidate_ms"] > 0 and document["target"] == "cpu"
    again = json.loads((tmp_path / "again.json").read_text())
    looked_at = [
        [gate["gate"] for gate in ours["gates"] if gate["gate"] != "clock"]  # a short call has no clock gate
        for ours in (receipt, again)
    ]
    assert looked_at[0] == looked_at[1] and "physical floor" in looked_at[0]
    assert again["timing"]["floor_ms"] == receipt["timing"]["floor_ms"] and receipt["timing"]["floor_ms"] > 0
    assert receipt["judgement"].startswith("All ") and again["judgement"].startswith("All ")


def test_a_changed_byte_is_not_confirmed(solved: Solved, cli: Cli) -> None:
    text = (solved.run / "kernel.py").read_text()
    cli.write("kernel.py", text + " ")
    done = cli.here("verify", "toy.py", "kernel.py", "--receipt", solved.run / "receipt.json")
    assert done.is_one_line("not confirmed", "sha256", code=1)
    cli.write("toy.py", TOY.replace("2.0", "2.5"))
    done = cli.here("verify", "toy.py", solved.run / "kernel.py", "--receipt", solved.run / "receipt.json")
    assert done.is_one_line("not confirmed", "task", code=1)


def test_changed_options_of_the_task_are_not_confirmed(solved: Solved, cli: Cli) -> None:
    cli.write("toy.toml", "tolerance = 0.5\n")
    done = cli.here("verify", "toy.py", solved.run / "kernel.py", "--receipt", solved.run / "receipt.json")
    assert done.is_one_line("not confirmed", "options", code=1)


def test_another_question_than_the_receipt_s(solved: Solved, cli: Cli) -> None:
    words = ("verify", "toy.py", solved.run / "kernel.py", "--receipt", solved.run / "receipt.json")
    assert cli.here(*words, "--target", "cuda").is_one_line("--target cuda", "cpu")
    assert cli.here(*words, "--policy", "strict").is_one_line("--policy strict", "fair")
    assert cli.here(*words, "--scale", "3").is_one_line("not confirmed", "overrides", code=1)


def test_a_receipt_of_another_device_or_none_at_all(solved: Solved, cli: Cli) -> None:
    receipt = json.loads((solved.run / "receipt.json").read_text())
    receipt["device"]["key"] = "cpu:Another:96"
    kernel = solved.run / "kernel.py"
    cli.write("tampered.json", json.dumps(receipt))
    assert cli.here("verify", "toy.py", kernel, "--receipt", "tampered.json").is_one_line("tampered.json", "changed")
    cli.write("other.json", json.dumps({**receipt, "content_sha256": content_digest(receipt)}))
    assert cli.here("verify", "toy.py", kernel, "--receipt", "other.json").is_one_line("cpu:Another:96", code=4)
    cli.write("garbage.json", "{]")
    assert cli.here("verify", "toy.py", kernel, "--receipt", "garbage.json").is_one_line(
        "garbage.json", "not a receipt"
    )
    cli.write("short.json", '{"schema_version": 2}')
    assert cli.here("verify", "toy.py", kernel, "--receipt", "short.json").is_one_line("short.json")
    cli.write("old.json", '{"schema_version": 1}')
    assert cli.here("verify", "toy.py", kernel, "--receipt", "old.json").is_one_line("schema version 1", code=4)
    assert cli.here("verify", "toy.py", kernel, "--receipt", "gone.json").is_one_line("gone.json")


def test_a_candidate_that_is_nonsense_fails_with_evidence(cli: Cli) -> None:
    cli.write("candidate.py", "this is no python ]\n")
    done = cli.here("verify", "toy.py", "candidate.py", "--json")
    assert done.code == 1 and done.err == ""
    assert done.json["verdict"] == "failed" and done.json["speedup"] is None
    assert "line 1" in done.json["reasons"][0]["evidence"]
    told = cli.here("verify", "toy.py", "candidate.py")
    assert told.code == 1 and told.out.startswith("failed on cpu") and "line 1" in told.out


def test_a_candidate_that_cannot_be_read(cli: Cli) -> None:
    (cli.folder / "binary.py").write_bytes(b"\xff\xfe\x00")
    assert cli.here("verify", "toy.py", "binary.py").is_one_line("binary.py", "UTF-8")
    assert cli.here("verify", "toy.py", "gone.py").is_one_line("gone.py")
    assert cli.here("verify", "toy.py", cli.folder).is_one_line("directory")
    assert cli.here("verify", "toy.py", "toy.py", "--policy", "kind").is_one_line("--policy")


def test_a_wrong_candidate_is_incorrect_and_pytorch_itself_is_rejected(warm_cli: Cli) -> None:
    warm_cli.write("wrong.py", HONEST.replace("2.0", "2.01"))
    wrong = warm_cli.here("verify", "toy.py", "wrong.py", "--json")
    assert wrong.code == 1 and wrong.json["verdict"] == "incorrect"
    warm_cli.write("eager.py", HONEST)
    eager = warm_cli.here("verify", "toy.py", "eager.py", "--json")
    assert eager.code == 1 and eager.json["verdict"] == "rejected" and eager.json["reasons"]


def test_a_gate_on_the_speedup(solved: Solved, warm_cli: Cli) -> None:
    shutil.copy(solved.run / "kernel.py", warm_cli.folder / "kernel.py")
    words = ("verify", "toy.py", "kernel.py", "--min-speedup", "1000", "--write-receipt", "mine.json")
    done = warm_cli.here(*words, "--json")
    assert done.code == 1 and done.json["verdict"] == "accepted"
    mine, found = (
        json.loads((warm_cli.folder / "mine.json").read_text()),
        json.loads((solved.run / "receipt.json").read_text()),
    )
    assert mine["candidate_sha256"] == done.json["candidate_sha256"] == found["candidate_sha256"]
    assert set(mine) == set(found) and mine["stage"] == "full" and found["stage"] == "final"
    validator = jsonschema.Draft202012Validator(json.loads(warm_cli.here("verify", "--schema").out))
    validator.validate(mine)
    validator.validate(found)
    assert mine["seconds"].keys() >= {"open", "intake", "build", "verify", "audit", "time"}
    assert mine["isolation"] == found["isolation"] == done.json["isolation"]
