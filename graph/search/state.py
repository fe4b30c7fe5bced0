"""What LangGraph carries and checkpoints: ids and numbers only. Texts and records live in the run directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict  # whose schema LangGraph's server can show on Python 3.11

from foundry.graph.run.request import Mechanism
from foundry.graph.search.orders import UserOrders
from foundry.graph.search.strategies.archive import Archive
from foundry.graph.search.strategies.gradients import Transition
from foundry.knowledge.candidate import Stage
from foundry.knowledge.thought import Diagnosis, ExpertName, Role

if TYPE_CHECKING:
    from foundry.graph.run.services import Services

Wants = Literal["", "write", "tools"]  # after an expert's thought; "": the next expert is asked
Update = dict[str, Any]  # what a node changes of its state


class Stop(TypedDict):
    """Why an island ends; `text` says it to people.

    user: told to; regroup: an island is added; budget: spent; satisfied: the best is good enough; plateau: no better
    candidate for long; exhausted: nothing new to try; diverged: a replay left its recording; error: ours.
    """

    kind: Literal["user", "regroup", "budget", "satisfied", "plateau", "exhausted", "diverged", "error"]
    text: str


class Findings(TypedDict):
    """Candidates of an island, each with its highest stage, in the order in which they were recorded."""

    upto: int  # the last record that is among them
    found: list[tuple[str, Stage]]


class BudgetLeft(TypedDict):
    """Of the whole search, its islands together. `tried`: kernels that tools worked on and nobody proposed, of at most
    `tries`; `reserved`: evaluations of other steps under way."""

    spent: int
    allowed: int
    reserved: int
    tried: int
    tries: int
    minutes: float
    allowed_minutes: float


class Outside(TypedDict):
    """What a step reads from outside its island. It is read once, when the step begins, and kept in the journal."""

    stop: Stop | None  # why the search should end, None while it goes on
    seen: int  # id of the last directive that was read
    directives: list[int]  # new ones to this island's experts
    to_run: list[int]  # new ones to the run
    tried: int  # a mark: what had been tried by then
    rivals: bool  # torch.compile had been timed by then
    mark: list[int]  # of what had been decided and evaluated by then
    stages: dict[str, Stage]  # the highest at which each candidate that the step may show was recorded
    results: Findings  # of the island's other strands, since this one looked last
    thinking: list[tuple[str, str]]  # other strands' steps that have no candidate yet, with their parents
    budget: NotRequired[BudgetLeft]  # what the search had spent by then; runs of before lack it
    left_out: NotRequired[list[Mechanism]]  # parts of the search that the step does without; runs of before lack it


class IslandReport(TypedDict, total=False):
    """What an island leaves behind at the end of a round; the next round starts from it."""

    island: int
    strand: int  # which of the steps that the island takes at a time; each strand reports
    round: int
    generation: int
    folded: int  # the last record of a candidate that is in the population
    archive: Archive
    population: dict[str, tuple[str, float]]
    dry: list[str]
    transitions: list[Transition]
    directives: list[int]  # ids of those that its experts are shown
    inbox_after: int
    orders: UserOrders  # of users, about candidates and the role
    stop: Stop | None  # None while it goes on


def merge_reports(old: dict[str, IslandReport] | None, new: dict[str, IslandReport] | None) -> dict[str, IslandReport]:
    """Each strand writes under its own key, so the order in which they end does not matter."""
    return {**(old or {}), **(new or {})}


class RunInput(TypedDict, total=False):
    """What a run begins from: its folder, or what to make a run of (LangGraph's server)."""

    run: str  # path of the run directory
    task: str  # path of the task file
    target: str
    effort: str
    model: str
    base_url: str
    ask: bool


class RunState(RunInput, total=False):
    """The root graph's state."""

    round: int
    lowerable: bool  # whether the kernel library could write a first candidate
    seeds: list[str]  # ids of the first candidates
    refused: list[str]  # those of them that an early proof refuses
    added: list[str]  # the role of each island that users added, "" for the round's
    ending: str  # why the search ended
    islands: Annotated[dict[str, IslandReport], merge_reports]
    winner: str  # candidate id, "" when nothing was accepted


class IslandState(IslandReport, total=False):
    """The state of one strand of an island while it loops its generations."""

    run: str
    role: Role
    own_role: NotRequired[Role | None]  # with which users added the island; runs of before lack it
    best: float  # highest merit in this round
    idle: int  # generations since `best` rose
    misses: int  # steps in a row that gave no candidate
    broken: str  # a failed candidate that the diagnostician may still repair, or ""
    repairs: int  # repairs in a row
    islands_now: int  # how many search in this round
    # the step at hand: what its nodes hand on
    step: str  # its name, see step_name
    outside: Outside  # from select
    parent: str  # from select
    given: int  # from select: the directive with the user's file that this step evaluates, or 0
    ordered: NotRequired[int]  # from select: the directive that said where this step begins, or 0
    diagnosis: Diagnosis | None  # from diagnose
    experts: list[ExpertName]  # from diagnose: those still to be asked, the one at work first
    wants: Wants  # from the expert at work
    turns: int  # how often it has called tools
    silent_s: float | None  # a model gave an expert of this step no answer: seconds until it may be asked again
    candidate: str  # from write, "" when the step gave none
    text: str  # sha256 of the candidate's file
    outcome: str  # why the candidate's tests ended early, "" when it passed them
    proven: bool  # the full protocol was spent on it
    islands: Annotated[dict[str, IslandReport], merge_reports]


def left_out_of(outside: Outside, services: Services) -> Sequence[Mechanism]:
    """What a step does without; of a run of before only the request says it."""
    return outside.get("left_out", services.request.left_out)


def report_key(island: int, strand: int) -> str:
    """Where the report of a strand stands: "2", "2.1"."""
    return f"{island}.{strand}" if strand else str(island)


def step_name(island: int, generation: int) -> str:
    """`i2g5`: it keys the journal, names the step's proposals and seeds its random streams."""
    return f"i{island}g{generation}"


def island_of(step: str) -> int:
    """The island of a step's name."""
    return int(step[1:].partition("g")[0])


class IslandOutput(TypedDict, total=False):
    """Only a key with a reducer may flow up: several islands end in one superstep."""

    islands: Annotated[dict[str, IslandReport], merge_reports]
