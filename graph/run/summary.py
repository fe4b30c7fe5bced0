"""Summary of how a run ended, read from its directory: the JSON that `foundry agent solve --json` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from foundry.graph.run.closing import FINAL, LEFT_UNPROVEN, Closing, EndedRun, close
from foundry.graph.run.events import Event, EventLog, TimeSplit
from foundry.graph.run.measurements import CONTEST
from foundry.graph.run.model_records import ModelRecord, read_records
from foundry.graph.run.run_directory import RunDirectory
from foundry.knowledge.candidate import Baseline, Contest, Evaluation
from foundry.knowledge.codec import decode, to_plain
from foundry.knowledge.merit import Standing, standing
from foundry.knowledge.step_words import spoken
from foundry.knowledge.task import Task

if TYPE_CHECKING:
    from foundry.agents.brain import NoticeName

QUESTION = "question"  # the fact of a run that holds the question it waits for
Record = TypeVar("Record")
RunVerdict = Literal["accepted", "nothing accepted", "unproven", "running", "interrupted", "failed"]


@dataclass(frozen=True)
class Summary:
    """The result of a run. Unknown values are None; times are in the units of their names.

    The contract: run, verdict, speedup, speedup_ci95, speedup_vs_compile, evaluations, wall_s, kernel, receipt keep
    their names and meanings. Speedups are over PyTorch eager unless the name says otherwise.
    """

    run: str  # path of the run directory
    verdict: RunVerdict
    speedup: float | None
    speedup_ci95: tuple[float, float] | None
    speedup_vs_compile: float | None
    evaluations: int
    wall_s: float
    kernel: str | None  # path
    receipt: str | None  # path
    task: str = ""
    target: str = ""
    device: str = ""
    brain: str = ""
    candidate: str = ""
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    compile_ms: float | None = None
    compile_speedup: float | None = None  # eager over torch.compile
    # Times of eager and of the kernel in the turns in which `compile_ms` was measured: its ratios are made of these.
    turns_baseline_ms: float | None = None
    turns_candidate_ms: float | None = None
    contest: Contest | None = None  # the winner beside other ways to run the reference, and its peak memory
    fraction_of_floor: float | None = None
    accuracy_class: str | None = None
    labels: list[str] = field(default_factory=list)  # allowed practices that the kernel uses, and what is to be said
    first_verified_s: float | None = None  # seconds after the start of the run
    ending: str = ""  # why the search ended; of a failed run the line that it failed with
    question: str = ""  # what the run asks before it goes on (`--ask`)
    notes: list[str] = field(default_factory=list)  # what the user should know
    islands: dict[str, str] = field(default_factory=dict)  # island -> why it ended
    tokens: int = 0
    dollars: float = 0.0
    priced: bool = True  # False: the model's price is unknown, and `dollars` counts nothing
    models: list[ModelRecord] = field(default_factory=list)  # what each brought and cost
    time: dict[str, float] = field(default_factory=dict)  # seconds by category, and the overhead's share
    standing: Standing | None = None  # faster or slower than PyTorch eager, by the 95 % interval of an accepted kernel
    closing: Closing | None = None  # if nothing was accepted: what was tried, what stood in the way, what helps

    def to_json(self) -> Any:
        """All fields as plain dicts, lists and numbers."""
        return to_plain(self)

    @property
    def time_words(self) -> str:
        """The wall time by category in words; islands overlap, so the parts may add up to more."""
        spent = {words: self.time.get(name, 0.0) for name, words in WORK.items()}
        parts = [f"{words} {seconds:.1f} s" for words, seconds in spent.items() if seconds >= 0.05]
        return ", ".join(parts) or "too short to be divided"


WORK = {
    "compile_s": "compiling",
    "run_s": "checking",
    "time_s": "timing",
    "profile_s": "profiling",
    "waiting_s": "waiting for a free core or GPU",
    "thinking_s": "thinking",
    "overhead_s": "everything else",
}

NOTED = (
    "not captured",
    "cannot lower",
    "more than torch",
    "assumed",
    "policy",
    "no device",
    "unproven kernel",
    "contest",
    "island failed",
    "instructions",
    "experience store",
    "what tells",
    "torch.compile was not compared",
)

SAID_OF_MODELS: tuple[NoticeName, ...] = ("model unavailable", "model is back", "model refuses")


def summarise(run: RunDirectory, read: Callable[..., list[Event]] | None = None) -> Summary:
    """The summary of a run in any state, also of one that another process works on.

    `read` gives its events by kind, if they have been read already.
    """
    log = EventLog(run.database, reading=True)
    events = (read or log.read)("evaluation", "note", "directive", "expert")
    wall_s = log.elapsed_s()
    winner = run.get("winner")
    verdict = _verdict(run, winner)
    told = run.get("ending") if verdict == "nothing accepted" else ""
    best = _best(run, winner)
    baseline, contest = _journalled(run, "baseline", Baseline), _journalled(run, CONTEST, Contest)
    timing = best.timing if best else None
    compiled = contest.rival("compile") if contest else None
    kernel, receipt = run.path / "kernel.py", run.path / "receipt.json"
    split = log.split_time(wall_s)
    first = [event.started for event in events if event.kind == "evaluation" and event.data["outcome"] == "correct"]
    return Summary(
        run=str(run.path),
        verdict=verdict,
        speedup=timing.speedup if timing else None,
        speedup_ci95=timing.speedup_ci95 if timing else None,
        speedup_vs_compile=compiled.by_kernel if compiled else None,
        evaluations=run.evaluation_count(),
        wall_s=round(wall_s, 3),
        kernel=str(kernel) if kernel.exists() else None,
        receipt=str(receipt) if receipt.exists() else None,
        task=run.get("task_name"),
        target=run.get("target"),
        device=run.get("device_key"),
        brain=run.get("brain"),
        candidate=best.candidate.id if best else "",
        baseline_ms=timing.baseline_ms if timing else baseline.eager_ms if baseline else None,
        candidate_ms=timing.candidate_ms if timing else None,
        compile_ms=compiled.ms if compiled else None,
        compile_speedup=compiled.over_baseline if compiled else None,
        turns_baseline_ms=contest.baseline_ms if contest and compiled else None,
        turns_candidate_ms=contest.candidate_ms if contest and compiled else None,
        contest=contest,
        fraction_of_floor=best.profile.fraction_of_floor if best and best.profile else None,
        accuracy_class=best.verdict.accuracy_class if best and best.verdict else None,
        labels=list(best.audit.labels) if best and best.audit else [],
        first_verified_s=round(min(first) - log.began(), 3) if first else None,
        ending=run.get("ending"),
        question=run.get(QUESTION),
        notes=[
            *dict.fromkeys([*_noted(events, told), *_refused(events)]),
            *_nothing_right(events),
            *([] if winner else _failed_proofs(events)),
            *_model_notes(run, events),
        ],
        islands={str(e.island): e.data["reason"] for e in events if e.kind == "note" and e.name == "island ends"},
        tokens=sum(int(event.data.get("tokens", 0)) for event in events if event.kind == "expert"),
        dollars=sum(float(event.data.get("dollars", 0.0)) for event in events if event.kind == "expert"),
        priced=all(event.data["priced"] for event in events if event.kind == "note" and event.name == "model"),
        models=read_records(run),
        time=_seconds(split),
        standing=standing(timing.speedup_ci95) if timing and winner else None,
        closing=_closing(run, events) if verdict == "nothing accepted" else None,
    )


def _closing(run: RunDirectory, events: list[Event]) -> Closing:
    """Why a run accepted nothing, from its events, policy and ending."""
    policy = decode(Task, run.get("task")).options.policy
    return close(EndedRun(str(run.path), run.request, policy, run.get("ending"), events))


def _noted(events: list[Event], told: str) -> list[str]:
    """The notes that a user should read, as "name: reason". Leaves out reasons that `told`, why there is no kernel,
    already contains."""
    noted = [event for event in events if event.kind == "note" and event.name in NOTED]
    reasons = [str(event.data.get("reason") or event.data.get("error")) for event in noted]
    return [f"{event.name}: {why}" for event, why in zip(noted, reasons, strict=True) if why not in told]


def _refused(events: list[Event]) -> list[str]:
    """The directives that no kernel could follow, each with the reason."""
    taken = [event.data for event in events if event.kind == "directive" and event.data.get("answer")]
    return [f"{data['directive']} ({data['text']}): {data['answer']}" for data in taken]


def _nothing_right(events: list[Event]) -> list[str]:
    """If no kernel was right, one line with the most common failure; else empty."""
    found = [event.data for event in events if event.kind == "evaluation"]
    if not found or any(data["outcome"] == "correct" for data in found):
        return []
    said = Counter(f"{spoken(data['outcome'])}: {data.get('evidence') or 'no reason given'}" for data in found)
    ((why, count),) = said.most_common(1)
    return [f"no kernel was right; {count} of {len(found)} ended with {' '.join(why.split())[:300]}"]


def _failed_proofs(events: list[Event]) -> list[str]:
    """For a run without a winner: the reasons why finalists, right in the search, were not accepted; each once."""
    proofs = [event for event in events if event.kind == "evaluation" and event.data.get("expert") == FINAL]
    reasons: dict[str, list[str]] = {}
    for event in proofs:
        why = " ".join(f"{spoken(event.data['outcome'])}: {event.data.get('evidence') or ''}".split())
        reasons.setdefault(why[:300], []).append(event.name)
    left = [event.data["candidate"] for event in events if event.kind == "note" and event.name == LEFT_UNPROVEN]
    found = [
        f"{', '.join(names)}{' each' * (len(names) > 1)} failed its proof, {why}" for why, names in reasons.items()
    ]
    if left:
        found.append(f"not proven, because the same reason would probably refuse {_them(left)}: {', '.join(left)}")
    return found


def _them(names: list[str]) -> str:
    """ "it" for one name, else "them"."""
    return "it" if len(names) == 1 else "them"


def _model_notes(run: RunDirectory, events: list[Event]) -> list[str]:
    """Notes about the model: parameters that its endpoint refused, outages, and the steps that it failed.

    The playbook took those steps; the latest reason is given.
    """
    calls = [event.data for event in events if event.kind == "expert" and "outcome" in event.data]
    calls = [call for call in calls if call["purpose"] not in ("answer", "rewrite")]
    failed = [call for call in calls if call["outcome"] not in ("answered", "repaired")]
    said = [event for event in events if event.kind == "note" and event.name in SAID_OF_MODELS]
    notes = [event.data["text"][:200] for event in said if event.name != "model unavailable"]
    if said and said[-1].name == "model unavailable":
        notes.append(said[-1].data["text"][:200])
    if not failed:
        return notes
    why = " ".join(f"{failed[-1]['outcome']}: {failed[-1]['detail']}".split())[:200]
    return [*notes, f"{run.get('brain')} left {len(failed)} of {len(calls)} steps to the playbook; the last: {why}"]


def kept_state(run: RunDirectory) -> Literal["finished", "failed", "interrupted"]:
    """The state of a run on which no process works: a killed one could not record that it does not run any more."""
    status = run.get("status")
    return "finished" if status == "finished" else "failed" if status == "failed" else "interrupted"


def _verdict(run: RunDirectory, winner: str) -> RunVerdict:
    """The run's outcome in a word: failed, running, interrupted, accepted (there is a winner), unproven (no device was
    present to prove on) or nothing accepted."""
    state = kept_state(run)
    if state == "failed":
        return "failed"
    if state == "interrupted":
        return "running" if run.get("status") == "running" and run.is_active else "interrupted"
    if winner:
        return "accepted"
    return "unproven" if run.get("present") == "no" else "nothing accepted"


def _best(run: RunDirectory, winner: str) -> Evaluation | None:
    """The winner; while the search goes on, the best candidate so far; None after a run that accepted nothing."""
    ranked = [winner] if winner else run.ranking(1) if run.get("status") != "finished" else []
    return run.evaluation(ranked[0]) if ranked else None


def _journalled(run: RunDirectory, key: str, shape: type[Record]) -> Record | None:
    """The answer under the journal's key, decoded to `shape`; None if there is none."""
    rows = run.database.run("SELECT value FROM journal WHERE key = ?", (key,))
    return decode(shape, rows[0][0]) if rows else None


def _seconds(split: TimeSplit) -> dict[str, float]:
    """Seconds by category, and two shares of the wall time, rounded to milliseconds and thousandths."""
    names = ["compile_s", "run_s", "time_s", "profile_s", "waiting_s", "thinking_s", "overhead_s", "overhead_share"]
    names += ["alone_s", "device_s", "idle_share"]
    return {name: round(float(getattr(split, name)), 3) for name in names}
