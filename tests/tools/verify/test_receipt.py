"""A receipt survives the disk, names what it is not about, and is never believed when something differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Candidate,
    Contest,
    DistributionError,
    Evaluation,
    Gate,
    Profile,
    Rival,
    Timing,
    Verdict,
)
from foundry.knowledge.device import Device
from foundry.knowledge.errors import NotComparable, UsageError
from foundry.knowledge.task import Task, TaskOptions
from foundry.tools.process.linux import MEANS
from foundry.tools.verify import receipt as receipts
from foundry.tools.verify.receipt import (
    Receipt,
    check_comparable,
    check_same_pair,
    compare,
    content_digest,
    make_receipt,
    read_receipt,
    receipt_schema,
    write_receipt,
)

PUBLISHED = Path(receipts.__file__).with_name("receipt.schema.json")
TEXT = "class ModelNew: ...\n"
BASELINE = Baseline(4.0, 0.01, [(3, 4)])
CONTEST = Contest((Rival("compile", 3.0, 1.3, 1.5),), 9, 4.0, 2.0)
TASK = Task("softmax", "softmax.py", "class Model: ...\n", "abc", TaskOptions(extra_shapes=({"ROWS": 7},)))
DEVICE = Device("cpu", "Test CPU", "x86-64-v4", 2, 1 << 25, 64, 1 << 34, facts={"compiler": "g++ 12"})
EVALUATION = Evaluation(
    Candidate("c1", 0, 3, "cpu", "library", "00"),
    Build(True, 1.0),
    Verdict("correct", "final", (Gate("x3", True, "fine"),), "ieee", (DistributionError("x3", 1e-7, 2e-7, 0.1, 0.1),)),
    Audit(True, "fair", (Gate("provenance", True, "nothing"),), ("layout",)),
    Timing("final", 2.0, 4.0, 2.0, (1.9, 2.1), 12, 0.02, 1.0, samples=[[4.0, 2.0]] * 12),
    Profile("roofline", 1e9, 1e9, 0.5, 1.0, 1),
)


def receipt(evaluation: Evaluation = EVALUATION) -> Receipt:
    return make_receipt(
        TASK,
        TEXT,
        DEVICE,
        BASELINE,
        evaluation,
        policy="fair",
        seeds={"final: x3": 5},
        cost={"wall_s": 9.0, "evaluations": 3},
        command="x",
        isolation=("session", "limits"),
        contest=CONTEST,
    )


def written(path: Path, **changes: Any) -> Path:
    """A receipt that says something else, with the digest that fits."""
    document = {**receipt().model_dump(mode="json"), **changes}
    path.write_text(json.dumps({**document, "content_sha256": content_digest(document)}))
    return path


def test_it_survives_the_disk_and_matches_its_schema(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    written_down = receipt()
    write_receipt(path, written_down)
    assert read_receipt(path) == written_down
    document = json.loads(path.read_text())
    assert set(receipt_schema()["required"]) == set(document) == set(receipt_schema()["properties"])
    assert document["timing"]["fraction_of_floor"] == 0.5 and document["errors"][0]["norm_error"] == 1e-7
    assert document["isolation"] == ["session", "limits"] and set(document["isolation_missing"]) == set(MEANS)
    assert document["stage"] == "final"
    assert document["seconds"] == {"build": 1.0, "verify": 0.0, "time": 0.0}
    assert [entry.name for entry in tmp_path.iterdir()] == ["receipt.json"]


def test_the_published_schema_is_the_model_s_and_any_validator_takes_it() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert published == receipt_schema(), "foundry verify --schema > tools/verify/receipt.schema.json"
    validator = jsonschema.Draft202012Validator(published)
    jsonschema.Draft202012Validator.check_schema(published)
    document = receipt().model_dump(mode="json")
    validator.validate(document)
    for change in ({"speedup": 9.0}, {"outcome": "wrong_result"}, {"candidate_sha256": "abc"}, {"isolation": None}):
        assert not validator.is_valid({**document, **change}), change
    assert not validator.is_valid({name: value for name, value in document.items() if name != "content_sha256"})


def test_an_error_beyond_any_number_is_null(tmp_path: Path) -> None:
    assert EVALUATION.verdict is not None
    error = DistributionError("x3", float("inf"), float("nan"), 0.5, 0.5)
    verdict = replace(EVALUATION.verdict, errors=(error,))
    write_receipt(tmp_path / "r.json", receipt(replace(EVALUATION, verdict=verdict)))
    assert read_receipt(tmp_path / "r.json").errors[0].norm_error is None
    json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)


def test_any_change_of_the_content_shows(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    write_receipt(path, receipt())
    whole = path.read_text()
    json.loads(whole)
    path.write_text(json.dumps(json.loads(whole)))  # its layout may change
    assert read_receipt(path) == read_receipt(written(tmp_path / "same.json", created=read_receipt(path).created))
    for before, after in (
        ('"speedup": 2.0', '"speedup": 2.5'),
        ("fine", "good"),
        ("layout", "Layout"),
        ("1.9,", "1.8,"),
    ):
        assert before in whole
        path.write_text(whole.replace(before, after, 1))
        with pytest.raises(UsageError, match="changed after it was written"):
            read_receipt(path)
    for length in range(0, len(whole) - 2, 97):
        path.write_text(whole[:length])
        with pytest.raises(UsageError, match="is not a receipt"):
            read_receipt(path)


def test_a_changed_byte_is_detected() -> None:
    assert check_same_pair(receipt(), TASK, TEXT) == ""
    assert "the kernel is not the receipt's" in check_same_pair(receipt(), TASK, TEXT + " ")
    assert "the task is not the receipt's" in check_same_pair(receipt(), replace(TASK, source="x"), TEXT)
    assert "options or overrides" in check_same_pair(receipt(), replace(TASK, overrides={"SCALE": 2}), TEXT)
    strict = replace(TASK.options, policy="strict", tolerance=1e-4)
    assert "options or overrides" in check_same_pair(receipt(), replace(TASK, options=strict), TEXT)


def test_a_starting_kernel_may_lie_elsewhere() -> None:
    here = replace(TASK, options=replace(TASK.options, start="/one/place/mine.py"))
    there = replace(TASK, options=replace(TASK.options, start="/another/mine.py"))
    made = make_receipt(here, TEXT, DEVICE, BASELINE, EVALUATION, policy="fair", seeds={}, cost={}, command="")
    assert check_same_pair(made, there, TEXT) == ""


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("protocol", "foundry-0", "protocol foundry-0"),
        (
            "device",
            {**receipt().device.model_dump(), "key": "cpu:Other:8"},
            "from cpu:Other:8 x86-64-v4, this is cpu:Test CPU:2",
        ),
        ("software", {"torch": "2.6.0"}, "baseline is PyTorch 2.6.0"),
    ],
)
def test_other_machines_and_versions_are_not_comparable(part: str, value: Any, words: str) -> None:
    check_comparable(receipt(), DEVICE)
    changed = Receipt.model_validate({**receipt().model_dump(), part: value})
    with pytest.raises(NotComparable, match=words):
        check_comparable(changed, DEVICE)


def test_the_new_interval_must_reach_the_old_one() -> None:
    assert compare(receipt(), 2.0, (1.95, 2.05))[0] == "confirmed"
    assert compare(receipt(), 3.0, (2.9, 3.1))[0] == "confirmed"
    standing, words = compare(receipt(), 1.5, (1.4, 1.6))
    assert standing == "not confirmed"
    figures = "receipt 2.000x (1.900 to 2.100), measured now 1.500x (1.400 to 1.600)"
    assert words == f"slower than claimed: {figures}"


def test_a_vague_measurement_confirms_nothing() -> None:
    assert compare(receipt(), 1.9, (1.72, 2.1))[0] == "confirmed"
    standing, words = compare(receipt(), 1.9, (1.5, 2.4))
    assert standing == "not confirmed" and words.startswith("too uncertain here")


def test_a_lower_accuracy_than_claimed_is_not_confirmed() -> None:
    assert compare(receipt(), 2.0, (1.95, 2.05), "ieee")[0] == "confirmed"
    standing, words = compare(receipt(), 2.0, (1.95, 2.05), "tf32")
    assert standing == "not confirmed" and "accuracy class" in words


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is not a receipt"),
        (b"[1]", "not a valid receipt"),
        (b"\xff\xfe{", "is not a receipt"),
        (b"[" * 100_000, "is not a receipt"),
        (b'{"schema_version": 2}', "not a valid receipt: protocol"),
        (b'{"schema_version": "one"}', "not a valid receipt: schema_version"),
        (b'{"schema_version": NaN}', "NaN is not JSON"),
        (b'{"a": 1, "a": 2}', "a name stands twice"),
        (b"9" * 10_000, "is not a receipt"),
    ],
)
def test_garbage_is_one_clear_line(tmp_path: Path, body: bytes, words: str) -> None:
    path = tmp_path / "receipt.json"
    path.write_bytes(body)
    with pytest.raises(UsageError, match=words) as error:
        read_receipt(path)
    assert "\n" not in str(error.value)


def test_missing_unwritable_newer_and_incomplete(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        read_receipt(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot be written"):
        write_receipt(tmp_path / "no" / "receipt.json", receipt())
    with pytest.raises(UsageError, match="no regular file"):
        write_receipt(tmp_path, receipt())
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(UsageError, match="no regular file"):
        write_receipt(tmp_path / "null", receipt())
    (tmp_path / "new.json").write_text('{"schema_version": 99}')
    with pytest.raises(NotComparable, match="schema version 99"):
        read_receipt(tmp_path / "new.json")
    with pytest.raises(UsageError, match="speedup: Extra inputs are not permitted"):
        read_receipt(written(tmp_path / "more.json", speedup=9.0))
    with pytest.raises(UsageError, match="only a candidate that was"):
        receipt(replace(EVALUATION, timing=None))
    with pytest.raises(UsageError, match="and accepted"):
        receipt(replace(EVALUATION, audit=Audit(False, "fair")))
