"""A receipt survives the disk, names what it is not about, and is never believed when something differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Candidate,
    DistributionError,
    Evaluation,
    Gate,
    Timing,
    Verdict,
)
from foundry.knowledge.device import Device
from foundry.knowledge.errors import NotComparable, UsageError
from foundry.knowledge.task import Task, TaskOptions
from foundry.tools.receipt import (
    Receipt,
    check_comparable,
    check_same_pair,
    compare,
    make_receipt,
    read_receipt,
    receipt_schema,
    write_receipt,
)

TEXT = "class ModelNew: ...\n"
TASK = Task("softmax", "softmax.py", "class Model: ...\n", "abc", TaskOptions(extra_shapes=({"ROWS": 7},)))
DEVICE = Device("cpu", "Test CPU", "x86-64-v4", 2, 1 << 25, 64, 1 << 34, facts={"compiler": "g++ 12"})
EVALUATION = Evaluation(
    Candidate("c1", 0, 3, "cpu", "library", "00"),
    Build(True, 1.0),
    Verdict("correct", "final", (Gate("x3", True, "fine"),), "ieee", (DistributionError("x3", 1e-7, 2e-7, 0.1, 0.1),)),
    Audit(True, "fair", (Gate("provenance", True, "nothing"),), ("layout",), "clean"),
    Timing("final", 2.0, 4.0, 2.0, (1.9, 2.1), 12, 0.02, 1.0, samples=[[4.0, 2.0]] * 12),
)


def receipt() -> Receipt:
    baseline = Baseline(4.0, 0.01, [(3, 4)], compile_ms=3.0, compile_speedup=1.3, floor_ms=1.0)
    return make_receipt(
        TASK,
        TEXT,
        DEVICE,
        baseline,
        EVALUATION,
        policy="fair",
        seeds={"final: x3": 5},
        cost={"wall_s": 9.0},
        command="x",
    )


def test_it_survives_the_disk_and_matches_its_schema(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    write_receipt(path, receipt())
    assert read_receipt(path) == receipt().model_copy(update={"created": read_receipt(path).created})
    document = json.loads(path.read_text())
    assert set(receipt_schema()["required"]) <= set(document) == set(receipt_schema()["properties"])
    assert document["timing"]["fraction_of_floor"] == 0.5 and document["errors"][0]["norm_error"] == 1e-7
    assert [entry.name for entry in tmp_path.iterdir()] == ["receipt.json"]


def test_a_changed_byte_is_detected() -> None:
    assert check_same_pair(receipt(), TASK, TEXT) == ""
    assert "the kernel is not the receipt's" in check_same_pair(receipt(), TASK, TEXT + " ")
    assert "the task is not the receipt's" in check_same_pair(receipt(), replace(TASK, source="x"), TEXT)
    assert "options or overrides" in check_same_pair(receipt(), replace(TASK, overrides={"SCALE": 2}), TEXT)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("protocol", "foundry-0", "protocol foundry-0"),
        ("device", {**receipt().device.model_dump(), "key": "cpu:Other:8"}, "from cpu:Other:8, this is cpu:Test CPU:2"),
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
    assert words == "receipt 2.000x (1.900 to 2.100), measured now 1.500x (1.400 to 1.600)"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is not a receipt"),
        (b"[1]", "not a valid receipt"),
        (b"\xff\xfe{", "is not a receipt"),
        (b"[" * 100_000, "is not a receipt"),
        (b'{"schema_version": 1}', "not a valid receipt: created"),
        (b'{"schema_version": "one"}', "not a valid receipt: schema_version"),
    ],
)
def test_garbage_is_one_clear_line(tmp_path: Path, body: bytes, words: str) -> None:
    path = tmp_path / "receipt.json"
    path.write_bytes(body)
    with pytest.raises(UsageError, match=words) as error:
        read_receipt(path)
    assert "\n" not in str(error.value)


def test_missing_unwritable_newer_and_incomplete(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_receipt(tmp_path / "none.json")
    with pytest.raises(UsageError, match="cannot be written"):
        write_receipt(tmp_path / "no" / "receipt.json", receipt())
    (tmp_path / "new.json").write_text('{"schema_version": 99}')
    with pytest.raises(NotComparable, match="schema version 99"):
        read_receipt(tmp_path / "new.json")
    document = receipt().model_dump(mode="json")
    (tmp_path / "more.json").write_text(json.dumps({**document, "speedup": 9.0}))
    with pytest.raises(UsageError, match="speedup: Extra inputs are not permitted"):
        read_receipt(tmp_path / "more.json")
    with pytest.raises(UsageError, match="only a candidate that was"):
        baseline = Baseline(4.0, 0.01, [(3, 4)])
        untimed = replace(EVALUATION, timing=None)
        make_receipt(TASK, TEXT, DEVICE, baseline, untimed, policy="fair", seeds={}, cost={}, command="")
