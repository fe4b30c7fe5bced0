"""The judge's end of a link to one runner: commands with a time limit, failures as data. Runs in the judge."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from foundry.knowledge.candidate import Outcome
from foundry.knowledge.opgraph import TensorSpec
from foundry.tools import bundle
from foundry.tools.cases import Case, Packed
from foundry.tools.channel import Channel, ChannelClosed, ChannelGarbled, ChannelTimeout, Message, memory
from foundry.tools.protocol import Parameters

OUTCOMES: dict[str, Outcome] = {
    "compile_error": "compile_error",
    "launch_failure": "launch_failure",
    "wrong_result": "wrong_result",
}


class RunnerFailed(Exception):
    """The runner raised, died, hung or talked nonsense; `side` says whose it is."""

    def __init__(self, outcome: Outcome, evidence: str, *, side: str = "candidate") -> None:
        self.outcome = outcome
        self.evidence = evidence
        self.side = side
        super().__init__(evidence)


class RunnerLink:
    """Commands of the judge to a runner. `run_limit_s` is the time a single forward may take."""

    def __init__(self, handle: int, *, load_limit_s: float, run_limit_s: float, side: str = "candidate") -> None:
        self._side = side
        self._channel = Channel.from_handle(handle)
        self._load_limit_s = load_limit_s
        self._run_limit_s = run_limit_s
        self._outputs: dict[str, tuple[int, list[torch.Tensor]]] = {}
        self.seconds: dict[str, float] = {}

    def ask(self, message: Message, handles: list[int], limit_s: float) -> Message:
        """One command and its answer; raises RunnerFailed."""
        start = time.perf_counter()
        try:
            self._channel.send(message, handles)
            answer, extra = self._channel.receive(limit_s)
        except ChannelTimeout:
            what = {"load": "loading the file", "build": "building the model"}.get(message["do"], "forward")
            raise RunnerFailed("timeout", f"{what} did not finish in {limit_s:g} s", side=self._side) from None
        except ChannelClosed as error:
            raise RunnerFailed("crash", "the process died", side=self._side) from error
        except ChannelGarbled as error:
            raise RunnerFailed("crash", f"the process sent {error}", side=self._side) from error
        finally:
            spent = time.perf_counter() - start
            self.seconds[message["do"]] = self.seconds.get(message["do"], 0.0) + spent
        for handle in extra:  # a runner has no files to give
            os.close(handle)
        if "refused" in answer:
            kind, line = OUTCOMES.get(str(answer["refused"]), "crash"), str(answer.get("line", ""))[:600]
            raise RunnerFailed(kind, line, side=self._side)
        return answer

    def load(self, what: Message) -> None:
        self.ask({"do": "load", **what}, [], self._load_limit_s)

    def token(self, given: str | None = None) -> str:
        """What the runner was prepared with; sets it when given."""
        return str(self.ask({"do": "token", "given": given}, [], self._run_limit_s).get("token", ""))

    def build(self, number: int, case: Case) -> None:
        """Constructs the model of a case and gives it the reference's seeded state; raises RunnerFailed."""
        description, handle = case.init
        try:
            order: Message = {"do": "build", "case": number, "init": description, "seed": case.seed, "mode": case.mode}
            self.ask({**order, "overrides": case.overrides, "dtype": case.dtype}, [handle], self._load_limit_s)
        finally:
            os.close(handle)

    def state(self, number: int, case: Case, kind: Parameters) -> str:
        """Copies parameters in; returns why they could not be matched, or ""."""
        packed: Packed = case.state(kind)
        description, handle = packed.bundle
        message: Message = {"do": "state", "case": number, "keys": packed.keys, "mutable": packed.mutable}
        message["bundle"] = description
        return str(self.ask(message, [handle], self._run_limit_s).get("unmatched", ""))

    def inputs(self, slot: int, number: int, packed: tuple[Message, int]) -> None:
        description, handle = packed
        self.ask({"do": "inputs", "slot": slot, "case": number, "bundle": description}, [handle], self._run_limit_s)

    def restore(self, slot: int) -> None:
        """Inputs of a slot as they were sent."""
        self.ask({"do": "restore", "slot": slot}, [], self._run_limit_s)

    def call(
        self, slot: int, specs: list[TensorSpec], poison: int, *, record: bool = False
    ) -> tuple[Message, list[torch.Tensor]]:
        """One checked call: the runner's remarks, and the outputs in memory of the judge.

        Raises RunnerFailed with wrong_result when shapes or dtypes differ.
        """
        message: Message = {"do": "call", "slot": slot, "poison": poison, "record": record}
        return self._fetch(message, specs)

    def run(self, slot: int, calls: int) -> tuple[float, float]:
        """One timed sample: (ms a call by the runner's clock, ms of the whole by the judge's)."""
        start = time.perf_counter()
        answer = self.ask({"do": "run", "slot": slot, "calls": calls}, [], self._run_limit_s * calls)
        wall_ms = 1e3 * (time.perf_counter() - start)
        nanoseconds = answer.get("ns")
        if not isinstance(nanoseconds, int) or nanoseconds <= 0:
            raise RunnerFailed("cheating", f"the runner reported a time of {nanoseconds!r} ns")
        return nanoseconds / 1e6 / calls, wall_ms

    def collect(self, specs: list[TensorSpec]) -> list[torch.Tensor]:
        """Outputs of the last timed sample."""
        return self._fetch({"do": "collect"}, specs)[1]

    def perturb(self, slot: int, swaps: list[tuple[int, int, int, int]]) -> None:
        self.ask({"do": "perturb", "slot": slot, "swaps": swaps}, [], self._run_limit_s)

    def forget(self, **what: int) -> None:
        self.ask({"do": "forget", **what}, [], self._run_limit_s)

    def close(self) -> None:
        for handle, _ in self._outputs.values():
            os.close(handle)
        self._outputs.clear()
        self._channel.close()

    def _fetch(self, message: Message, specs: list[TensorSpec]) -> tuple[Message, list[torch.Tensor]]:
        plain = [bundle.plain_spec(spec) for spec in specs]
        key = repr(plain)
        if key not in self._outputs:
            handle = memory("outputs", bundle.offsets(specs)[1])
            self._outputs[key] = (handle, bundle.flat_views(specs, handle, writable=True))
        handle, views = self._outputs[key]
        for view in views:
            view.view(torch.uint8).fill_(0xFF)  # an answer that was not written is no answer
        answer = self.ask({**message, "expect": plain}, [handle], self._run_limit_s)
        if not answer.get("written"):
            raise RunnerFailed("wrong_result", _difference(specs, answer.get("specs")))
        return answer, [view.view(spec.shape) for view, spec in zip(views, specs, strict=True)]


def _difference(wanted: list[TensorSpec], have: Any) -> str:
    """How the outputs' shapes and dtypes differ, in words."""
    try:
        found = [bundle.spec_from(item) for item in have]
    except (TypeError, ValueError):
        return "the outputs have no readable shapes"
    if len(found) != len(wanted):
        return f"forward returned {len(found)} tensors, the reference {len(wanted)}"
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one.shape != other.shape:
            return f"output {index} has shape {list(one.shape)}, the reference's has {list(other.shape)}"
        if one.dtype != other.dtype:
            return f"output {index} is {one.dtype}, the reference's is {other.dtype}"
    return "the outputs could not be written"
