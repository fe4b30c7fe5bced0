"""Whatever a task, its options, a kernel or a receipt holds: a value, or one clear line; never a traceback or a wait.

`FOUNDRY_FUZZ=5000 pytest tests/fuzz` looks longer, with other garbage each time.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.garbage import KERNEL, OBJECTS, OPTIONS, TASK, VALUES, altered, damaged

from foundry.knowledge.candidate import Audit, Baseline, Build, Candidate, Evaluation, Gate, Timing, Verdict
from foundry.knowledge.codec import decode
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.errors import FoundryError, NotComparable, TaskError, UsageError
from foundry.knowledge.task import Task, TaskOptions, overridden_source
from foundry.tools.audit import audit
from foundry.tools.targets.cpu.build import CpuTarget
from foundry.tools.task.file import OptionsFile, read_task
from foundry.tools.task.plain_file import KERNEL_BYTES, parse_python, read_bytes, read_kernel
from foundry.tools.verify.receipt import (
    Receipt,
    check_comparable,
    check_same_pair,
    compare,
    content_digest,
    make_receipt,
    read_receipt,
)
from foundry.tools.verify.verify import hopeless

DEVICE = Device("cpu", "Test CPU", "x86-64-v4", 2, 1 << 25, 64, 1 << 34)
LIMIT_S = 600  # of a test, all of its examples and whatever else the machine does


@pytest.fixture(autouse=True)
def in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A reader that waits for something fails its test instead of hanging it."""
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still at it after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def task() -> Task:
    return Task("toy", "toy.py", TASK, "0" * 64, TaskOptions(tolerance=1e-3, extra_shapes=({"ROWS": 7},)))


@pytest.fixture
def receipt(task: Task) -> Receipt:
    evaluation = Evaluation(
        Candidate("c1", 0, 0, "cpu", "user", ""),
        Build(True, 1.0),
        Verdict("correct", "full", (Gate("x3", True, "fine"),), "ieee"),
        Audit(True, "fair", (Gate("work", True, "in its own kernels"),)),
        Timing("full", 2.0, 4.0, 2.0, (1.9, 2.1), 12, 0.02, 1.0, samples=[[4.0, 2.0]] * 12),
    )
    baseline = Baseline(4.0, 0.01, [(3, 4)])
    return make_receipt(
        task, KERNEL, DEVICE, baseline, evaluation, policy="fair", seeds={"x3": 5}, cost={}, command="foundry verify"
    )


def told(work: Callable[[], Any], *kinds: type[FoundryError]) -> Any:
    """The result of `work`; None if it refused with one of these errors, in one line of readable length."""
    try:
        return work()
    except kinds as error:
        assert "\n" not in str(error).strip() and 5 < len(str(error)) < 700, str(error)
        return None


@given(body=damaged(TASK), scale=st.none() | st.integers(-2, 10**30))
def test_task_files(body: bytes, scale: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.py"
        path.write_bytes(body)
        task = told(lambda: read_task(path, scale=scale), TaskError)
        if task is not None:
            assert task.source.encode() == body
            told(lambda: overridden_source(task.source, task.overrides), TaskError)
            told(lambda: overridden_source(task.source, {"ROWS": 5, "SCALE": 2}), TaskError)


@given(body=damaged(OPTIONS))
def test_damaged_options(body: bytes) -> None:
    _read_options(body)


@given(
    changed=altered({"tolerance": 0.1, "policy": "fair", "extra_shapes": [{"ROWS": 3}], "start": "x", "mode": "eval"})
)
def test_options_of_other_kinds(changed: dict[str, Any]) -> None:
    lines = [f"{key} = {text}" for key, value in changed.items() if (text := _toml(value))]
    _read_options("\n".join(lines).encode(errors="replace"))


@given(value=VALUES, key=st.sampled_from(list(OptionsFile.model_fields)))
def test_every_option_with_any_value(value: Any, key: str) -> None:
    _read_options(f"{key} = {_toml(value)}".encode(errors="replace"))


@pytest.mark.parametrize(
    "text",
    [
        "tolerance = inf",
        "tolerance = nan",
        "tolerance = 2.0",
        "input_range = [-inf, inf]",
        "x = " + "[" * 5000,
        "x = " + "{a=" * 5000,
        "extra_shapes = [{ ROWS = " + "9" * 5000 + " }]",
        "extra_shapes = [{ ROWS = 0x" + "f" * 5000 + " }]",
        "extra_shapes = [" + "{ ROWS = 1 }," * 1000 + "]",
        'start = "loop.py"',
        'start = "a\\u0000b"',
        f'start = "{"x/" * 3000}"',
        'start = "/dev/zero"',
        'start = ".."',
    ],
)
def test_options_that_only_look_like_some(text: str, tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "toy.py").write_text(TASK)
    (tmp_path / "toy.toml").write_text(text)
    with pytest.raises(TaskError, match=r"toy\.toml"):
        read_task(tmp_path / "toy.py")


def _read_options(body: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.py"
        path.write_text(TASK)
        path.with_suffix(".toml").write_bytes(body)
        task = told(lambda: read_task(path), TaskError)
        if task is not None:
            assert task.options.tolerance is None or 0 < task.options.tolerance <= 1


def _toml(value: Any) -> str:
    """The value as TOML; "" if TOML cannot express it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_toml(item) or 0}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) or "0" for item in value) + "]"
    return "" if value is None else json.dumps(value)


@given(body=damaged(KERNEL), named=st.booleans())
def test_candidate_files(body: bytes, named: bool, task: Task) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_bytes(body)
        text = told(lambda: read_kernel(path), UsageError)
    if text is None:
        return
    reason = hopeless(text)
    assert "\n" not in reason and len(reason) < 500
    if not reason:  # it would be built and run
        assert all(
            "\n" not in gate.evidence
            for gate in audit(text, Build(True, 0.0), None, None, "fair", task_source=TASK).gates
        )
        return
    build = CpuTarget().build(text)
    assert build.ok or ("\n" not in build.first_error and build.first_error)


@pytest.mark.parametrize(
    "about",
    [
        *("{}", "{'target': 'cpu', 'flags': 3}", "{'target': ['cpu']}", "{'target': 'cpu', 'flags': [[], {}]}"),
        *(
            "{'target': 'cpu', 'compiler': 'rm'}",
            "{'target': 'cpu', 'compiler': None}",
            "{[]: 1}",
            "{'target': 'cuda'}",
        ),
        *("{'target': 'cpu', 'flags': ['-o', '\\0']}", "[" * 150 + "]" * 150, "{'a': " + "-" * 5000 + "1}", "{**x}"),
        "{'target': 'cpu', 'flags': '" + "x" * 300_000 + "'}",
    ],
)
def test_a_kernel_that_says_strange_things_of_itself(about: str) -> None:
    build = CpuTarget().build(f'FOUNDRY = {about}\nSOURCE = """int x;"""\nclass ModelNew: ...\n')
    assert build.ok or (build.first_error and "\n" not in build.first_error)


@given(data=st.data())
def test_damaged_receipts(data: st.DataObject, receipt: Receipt, task: Task) -> None:
    whole = json.dumps(receipt.model_dump(mode="json"), indent=1)
    body = data.draw(damaged(whole))
    assert _read_receipt(body, task) in (None, receipt)


@given(data=st.data())
def test_receipts_that_say_other_things(data: st.DataObject, receipt: Receipt, task: Task) -> None:
    changed = data.draw(altered(receipt.model_dump(mode="json")))
    read = _read_receipt(json.dumps(changed).encode(), task)
    assert read in (None, receipt)
    resealed = {**changed, "content_sha256": content_digest(changed)}
    _read_receipt(json.dumps(resealed).encode(), task)


def _read_receipt(body: bytes, task: Task) -> Receipt | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "receipt.json"
        path.write_bytes(body)
        read: Receipt | None = told(lambda: read_receipt(path), UsageError, NotComparable)
    if read is not None:
        check_same_pair(read, task, KERNEL)
        told(lambda: check_comparable(read, DEVICE), NotComparable)
        assert compare(read, 2.0, (1.9, 2.1))[0] in ("confirmed", "not confirmed")
    return read


@given(
    body=st.binary(max_size=60) | damaged('{"copy_bytes_per_s": 1.0, "measured_on": "2026"}') | st.just(b"[" * 90_000)
)
def test_records_that_crossed_a_border(body: bytes) -> None:
    told(lambda: decode(Ceilings, body), UsageError)


@pytest.mark.parametrize("kind", OBJECTS)
def test_things_that_are_no_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "toy.py"
    OBJECTS[kind](path)
    assert told(lambda: read_task(path), TaskError) is None
    assert told(lambda: read_receipt(path), UsageError, NotComparable) is None
    text = told(lambda: read_kernel(path), UsageError)
    assert text is None or hopeless(text)


@pytest.mark.parametrize("kind", [kind for kind in OBJECTS if kind not in ("empty", "blanks")])
def test_options_that_are_no_files(kind: str, tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TASK)
    OBJECTS[kind](tmp_path / "toy.toml")
    with pytest.raises(TaskError) as error:
        read_task(tmp_path / "toy.py")
    assert "\n" not in str(error.value) and "toy.toml" in str(error.value)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "toy.py").write_text(TASK)
    monkeypatch.setattr(os, "open", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(UsageError, match=r"toy\.py: Permission denied"):
        read_bytes(tmp_path / "toy.py")


def test_the_largest_file_is_read_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "toy.py"
    path.write_bytes(b"a;" * (1 << 19))
    assert told(lambda: read_task(path), TaskError) is None
    path.write_bytes(b"a" * ((1 << 20) + 1))
    with pytest.raises(TaskError, match="larger than"):
        read_task(path)


def test_a_kernel_for_a_network_of_many_layers_is_read(tmp_path: Path) -> None:
    """A kernel that a search had exported could not be verified: its device code is a string of 2.6 MB."""
    path = tmp_path / "kernel.py"
    path.write_text('SOURCE = """' + "// a line of device code\n" * 120_000 + '"""\n')
    assert len(parse_python(read_kernel(path)).body) == 1
    path.write_bytes(b"#" * (KERNEL_BYTES + 1))
    with pytest.raises(UsageError, match="larger than"):
        read_kernel(path)
    path.write_bytes(b"x = 1\n" * 400_000)  # would take seconds and a GB to parse
    with pytest.raises(UsageError, match="of Python beside its long strings"):
        read_kernel(path)


def test_line_ends_and_accents_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "toy.py"
    path.write_bytes(TASK.replace("\n", "\r\n").replace("ROWS = 64", "ROWS = 64  # gr\u00f6\u00dfe").encode())
    task = read_task(path, scale=3)
    assert task.source.count("\r\n") == TASK.count("\n")
    assert "SCALE = 3\r\n" in overridden_source(task.source, task.overrides)
    path.write_bytes(b"\xef\xbb\xbf" + TASK.encode())
    with pytest.raises(TaskError, match="byte order mark"):
        read_task(path)
