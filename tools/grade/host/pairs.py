"""Prepares, times and ends the groups of one timing, each a fresh pair of processes. In the main process; free of
torch.

While a group is prepared, and while its candidate's process is examined afterwards, the device is shared. It is held
alone only for calls that are timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from foundry.tools.grade.host.answers import raise_error
from foundry.tools.grade.host.runner_pool import REFERENCE, Runners, pool_key
from foundry.tools.grade.host.timed_groups import SLOWED
from foundry.tools.machine.holds import Holds
from foundry.tools.process.channel import ChannelClosed, Message
from foundry.tools.process.zygote import Worker, WorkerDied

ATTEMPTS = 2  # a reference whose process died is no fault of the candidate


@dataclass
class _Group:
    """One pair of processes of a timing and what the judge is asked about it."""

    order: Message
    sides: dict[str, Worker]
    broken: str = ""  # the limit that the candidate's process broke

    def preparation_order(self) -> list[str]:
        """The two sides in the order in which they are prepared."""
        return ["candidate", "reference"] if self.order.get("candidate_first") else ["reference", "candidate"]


class PairedRun:
    """The groups of one candidate, timed by one judge in turns with the reference, or with another candidate: the
    message's "beside"."""

    def __init__(
        self,
        judge: Worker,
        runners: Runners,
        holds: Holds,
        message: Message,
        limit_s: float,
    ) -> None:
        """Starts nothing. `message` is the base of each request to the judge, `limit_s` the time limit of one
        request."""
        self._judge, self._runners, self._holds, self._message = judge, runners, holds, message
        self._limit_s = limit_s  # one request to the judge
        self._looks_alone = message["stage"] != "screen"  # times the reference without a candidate beside it too
        self._groups: dict[int, _Group] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[PairedRun]:
        """A context manager that ends the remaining processes and has the judge forget the timing afterwards."""
        try:
            yield self
        finally:
            for number in list(self._groups):
                self._end_group(number, is_well=False)
            with contextlib.suppress(WorkerDied):
                self._judge.request({"do": "release"})

    def prepare(self, orders: Mapping[int, Message]) -> tuple[Message, str]:
        """Starts the pairs of processes of the groups in `orders` and has the judge load their models.

        Returns the judge's answer and "". If one fails, ends all these groups and returns the failure and how its
        process ended.
        """
        if self._looks_alone:
            text = str(self._message["text"])
            self._runners.pool.restock(text, (REFERENCE, pool_key(text)), self._holds.starting)
        for number, order in orders.items():
            opponent = self._runners.take(str(self._message.get("beside", "")))
            candidate = self._runners.take(str(self._message["text"]))
            self._groups[number] = _Group(order, {"reference": opponent, "candidate": candidate})
        answer = self._make_ready(list(orders))
        if "failed" not in answer:
            return answer, ""
        failed = int(answer.get("group", next(iter(orders))))
        ended = self._end_group(failed, is_well=False)
        for number in orders:
            self._end_group(number, is_well=False)
        return answer, ended

    def run(self, number: int, orders: Mapping[int, Message]) -> tuple[Message, str]:
        """Times one group and returns the judge's answer and how the candidate's process ended.

        Prepares it first, with the others in `orders`, if needed. Tries again, ATTEMPTS in all, if the reference's
        process died.
        """
        for _ in range(ATTEMPTS):
            answer, ended = ({}, "") if number in self._groups else self.prepare(orders)
            if "failed" not in answer:
                answer, ended = self._time(number)
            if answer.get("side") != "reference":
                break
        return answer, ended

    # ------------------------------------------------------------ steps

    def _make_ready(self, numbers: Sequence[int]) -> Message:
        """Has the judge load the models of these groups; returns its answer.

        In a proof, a reference that comes first is also timed alone, before the candidate's process has its model.
        """
        ready: list[tuple[int, str]] = []
        for number in numbers:
            group = self._groups[number]
            if self._looks_alone and group.preparation_order()[0] == "reference":
                answer = self._ask_ready([(number, "reference")])
                if "failed" not in answer:
                    answer = self._ask_alone(number)
                if "failed" in answer:
                    return answer
                ready.append((number, "candidate"))
            else:
                ready += [(number, side) for side in group.preparation_order()]
        return self._ask_ready(ready)

    def _time(self, number: int) -> tuple[Message, str]:
        """Times a prepared group with the device held alone, has the candidate examined afterwards and ends the group.

        If the reference was slow beside the candidate, or was not yet timed alone in a proof, it is timed again alone.
        Returns the answer and how the candidate ended.
        """
        order = self._groups[number].order
        self._runners.await_reaped()
        with self._holds.alone():
            answer = self._ask("time", group=number, **order)
            self._holds.count(answer)
        if "failed" in answer:
            return answer, self._end_group(number, is_well=False)
        slowed = float(answer["slowed"])
        is_looked_at = slowed > SLOWED or (not slowed and self._looks_alone)
        with self._holds.shared():
            examined = self._ask("conclude", group=number, stays=is_looked_at, record=order.get("record"))
        if "failed" in examined:
            return examined, self._end_group(number, is_well=False)
        self._end_side(number, "candidate", is_well=True)
        if is_looked_at:
            answer["alone_ms"] = self._ask_alone(number, ends=True).get("alone_ms", 0.0)
        self._end_group(number, is_well=True)
        return {**answer, "operators": examined["operators"]}, ""

    def _ask_ready(self, sides: Sequence[tuple[int, str]]) -> Message:
        """Links the processes of these (group, side) pairs to the judge, which loads their models; returns its
        answer."""
        workers = [self._groups[number].sides[side] for number, side in sides]
        with self._holds.shared():
            return self._ask("ready", workers, sides=[list(item) for item in sides])

    def _ask_alone(self, number: int, *, ends: bool = False) -> Message:
        """Has the judge time a group's reference with the device held alone. `ends`: True if the candidate's process
        has ended."""
        self._runners.await_reaped()
        with self._holds.alone():
            answer = self._ask("alone", group=number, ends=ends)
            self._holds.count(answer)
        return answer

    def _ask(self, do: str, workers: Sequence[Worker] = (), **fields: object) -> Message:
        """The judge's answer, or a "failed" answer if a process died. A candidate that breaks a limit is killed; the
        judge answers then, because its link closes."""

        def tick() -> None:
            """Ends candidates' processes that broke a limit and notes which limit. The reference's side counts only if
            it is another candidate."""
            for group in self._groups.values():
                for side in ("candidate", "reference") if "beside" in self._message else ("candidate",):
                    watched = group.sides.get(side)
                    if watched is not None and not group.broken and (reason := watched.excess()):
                        group.broken = reason
                        watched.end()

        try:
            with self._runners.links(workers) as handles:
                asked = {**self._message, **fields, "do": do}
                pause = self._holds.pause
                answer, _ = self._judge.request(asked, handles, timeout_s=self._limit_s, tick=tick, pause=pause)
        except WorkerDied as died:
            return {"failed": ["crash", f"the judge {died}"]}
        except ChannelClosed:  # a runner was gone before it could be linked: hardly the one that was just forked
            return {"failed": ["crash", "the process died"], "side": "reference"}
        raise_error(answer)
        return answer

    # ------------------------------------------------------------ ends

    def _end_side(self, number: int, side: str, *, is_well: bool) -> str:
        """Ends the process of one side, if it still has one; returns how it ended."""
        worker = self._groups[number].sides.pop(side, None)
        return self._runners.release(worker, is_well=is_well) if worker is not None else ""

    def _end_group(self, number: int, *, is_well: bool) -> str:
        """Ends a group's processes and forgets it; returns the limit that its candidate broke, or else how it ended."""
        if number not in self._groups:
            return ""
        ended = self._end_side(number, "candidate", is_well=is_well)
        self._end_side(number, "reference", is_well=True)
        return self._groups.pop(number).broken or ended
