"""Observed behaviour of a process: whose operators ran, which libraries it loaded, what a call called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foundry.knowledge.task import Policy
from foundry.tools.audit import provenance_gates
from foundry.tools.audit.acts.conduct import conduct_gates
from foundry.tools.audit.acts.observed import Observations
from foundry.tools.audit.acts.provenance import more_work
from foundry.tools.grade.runner.observe import Observer
from foundry.tools.grade.runner.record import record_ops
from foundry.tools.grade.runner.tensors import fewer_rows


def test_an_operator_of_its_own_is_judged_by_what_is_in_it() -> None:
    make: Any = torch.library.Library  # without types
    library = make("foundry_test_styles", "DEF")
    library.define("hides(Tensor x) -> Tensor")
    library.impl("hides", lambda x: torch.softmax(x, -1), "CPU")
    library.define("wraps(Tensor x) -> Tensor")
    library.impl("wraps", lambda x: torch.empty_like(x), "CPU")
    x = torch.ones(64, 64)
    operators = torch.ops.foundry_test_styles
    hidden = record_ops(lambda: operators.hides(x))
    (gate,) = provenance_gates(hidden, None, "fair", reference_work=2.0 * x.nbytes)
    assert not gate.passed and "softmax" in gate.evidence
    (gate,) = provenance_gates(record_ops(lambda: operators.wraps(x)), None, "fair", reference_work=2.0 * x.nbytes)
    assert gate.passed, gate.evidence


@pytest.mark.parametrize("name", ["hswish_pool", "bilinear", "scaled_dot_product"])
def test_an_operator_of_its_own_may_have_any_name_and_arguments(name: str) -> None:
    make: Any = torch.library.Library  # without types
    library = make(f"foundry_test_{name}", "DEF")
    library.define(f"{name}(Tensor x, Tensor weight, int pad) -> Tensor")
    library.impl(name, lambda x, weight, pad: torch.empty_like(x), "CPU")
    operator = getattr(getattr(torch.ops, f"foundry_test_{name}"), name)
    rows = record_ops(lambda: operator(torch.ones(8, 4), torch.ones(3), 1))
    (gate,) = provenance_gates(rows, None, "fair", reference_work=1000.0)
    assert gate.passed and any(name in row["op"] for row in rows)


def test_a_library_that_was_deleted_after_it_was_loaded_can_still_be_read(tmp_path: Path) -> None:
    library = tmp_path / "gone.so"
    library.write_bytes(b"\x7fELF")
    observer = Observer.__new__(Observer)  # its hook could not be taken away again
    observer._kept, observer._folder = {}, str(tmp_path)
    observer._keep(str(library))
    library.unlink()
    assert Path(observer._kept[str(library)]).read_bytes() == b"\x7fELF"


def test_a_lock_in_forward_and_settings_of_the_build_are_no_offence() -> None:
    seen: Observations = {
        "events": [("load", "os.putenv", "TORCH_EXTENSIONS_VERBOSE", 3), ("load", "os.putenv", "MAX_JOBS", 4)],
        "calls": [("_thread.lock.__exit__", 7, 0.0), ("_thread.RLock.__enter__", 8, 0.0)],
    }
    assert [gate for gate in conduct_gates(seen, "fair", on_cpu=True) if not gate.passed] == []
    seen["calls"] = [("_thread.start_new_thread", 7, 0.0)]
    seen["events"] = [("load", "os.putenv", "OMP_NUM_THREADS", 3)]
    assert len([gate for gate in conduct_gates(seen, "fair", on_cpu=True) if not gate.passed]) == 2


@pytest.mark.parametrize("name", ["builtins.bytes.translate", "torch.storage._StorageBase.byteswap", "zlib.crc32"])
def test_functions_of_python_that_take_a_calls_time_compute_for_the_kernel(name: str) -> None:
    def failed(*calls: tuple[str, int, float], policy: Policy = "fair") -> list[str]:
        gates = conduct_gates({"calls": list(calls)}, policy, on_cpu=True)
        return [gate.evidence for gate in gates if not gate.passed]

    (evidence,) = failed((name, 7, 0.6))
    assert f"line 7: {name.removeprefix('builtins.')} takes 60 % of each call's processor time" in evidence
    assert failed((name, 7, 0.1)) == failed((name, 7, 0.6), policy="open") == []
    assert failed(("k_tone_curve.load", 7, 0.9), ("torch._VariableFunctionsClass.empty", 8, 0.9)) == []


STREAM = [("torch.cuda.stream", 7, 0.0), ("torch.cuda.streams.Stream.__new__", 7, 0.0)]


@pytest.mark.parametrize("waits", ["torch.cuda.streams.Stream.wait_stream", "torch.cuda.synchronize"])
def test_a_stream_of_its_own_must_be_waited_for(waits: str) -> None:
    alone = {gate.gate: gate for gate in conduct_gates({"calls": STREAM}, "fair", on_cpu=False)}["steady calls"]
    assert not alone.passed and "waits for no stream" in alone.evidence
    joined = conduct_gates({"calls": [*STREAM, (waits, 8, 0.0)]}, "fair", on_cpu=False)
    assert [gate for gate in joined if not gate.passed] == []


def test_half_of_the_rows_of_all_inputs_that_have_as_many() -> None:
    x, index, weight = torch.randn(6, 3), torch.arange(6), torch.randn(3, 3)
    (left, given, (kept,)), rows = fewer_rows([x, index, (weight,)])
    assert rows == 3 and torch.equal(left, x[:3]) and torch.equal(given, index[:3]) and kept is weight
    assert fewer_rows([torch.randn(1, 3)])[1] == fewer_rows([torch.randn(7)])[1] == fewer_rows([3])[1] == 0


def test_work_that_pytorch_does_in_one_call_and_not_in_another() -> None:
    x = torch.randn(64, 64)
    none, all_of_it = record_ops(lambda: torch.empty_like(x)), record_ops(lambda: torch.softmax(x, 1))
    assert "softmax" in more_work(none, all_of_it, x.nbytes)
    assert more_work(all_of_it, all_of_it, x.nbytes) == more_work(all_of_it, none, x.nbytes) == ""


@pytest.mark.parametrize(
    ("library", "passes"),
    [("libcuda.so.1", True), ("/lib/libnvrtc.so.13", True), ("libcublas.so.13", False), ("libcuda-x.so", False)],
)
def test_a_launcher_that_opens_the_driver_in_every_call_brings_no_library(library: str, passes: bool) -> None:
    """PyTorch's own launcher of kernels compiled at run time looks the driver up each time."""
    seen: Observations = {"events": [("steady", "ctypes.dlopen", library, 73)]}
    (gate,) = [gate for gate in conduct_gates(seen, "fair", on_cpu=False) if gate.gate == "process events"]
    assert gate.passed is passes
