"""The state that LangGraph carries and checkpoints: ids and numbers. Texts and records are in the run directory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict  # whose schema LangGraph's server can show on Python 3.11

from foundry.graph.search.orders import UserOrders
from foundry.knowledge.thought import Diagnosis, ExpertName

Wants = Literal["", "write", "tools"]  # next node after an expert's thought; "": the next expert is asked
Update = dict[str, Any]  # what a node changes of its state


class Stop(TypedDict):
    """The reason why an island ends; `text` is for people.

    user: told to; joined: another island joins, then this one goes on; budget: spent; satisfied: the best is good
    enough; plateau: no better candidate for long; exhausted: nothing new to try; diverged: a replay left its recording;
    error: ours.
    """

    kind: Literal["user", "joined", "budget", "satisfied", "plateau", "exhausted", "diverged", "error"]
    text: str


class BudgetLeft(TypedDict):
    """The budget of the whole search, all islands together.

    `tried`: kernels that tools worked on without a proposal, at most `tries`; `reserved`: evaluations of other steps
    under way.
    """

    spent: int
    allowed: int
    reserved: int
    tried: int
    tries: int
    minutes: float
    allowed_minutes: float


class Outside(TypedDict):
    """Facts that a step reads from outside its island: once, when it begins; the journal keeps them."""

    stop: Stop | None  # why the search should end, None while it goes on
    seen: int  # id of the last directive that was read
    directives: list[int]  # new ones to this island's experts
    to_run: list[int]  # new ones to the run
    tried: int  # a mark: what had been tried by then
    rivals: bool  # torch.compile had been timed by then
    mark: list[int]  # a mark: decisions and evaluations made by then
    thinking: list[tuple[str, str]]  # other islands' steps that have no candidate yet, with their parents
    budget: BudgetLeft  # what the search had spent by then


def merge_islands(old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any]:
    """The states of both by island number; `new` wins. Islands write only their own, so their order does not matter."""
    return {**(old or {}), **(new or {})}


class RunInput(TypedDict, total=False):
    """The input of a run: its folder, or the facts to create one (LangGraph's server)."""

    run: str  # path of the run directory
    task: str  # path of the task file
    target: str
    effort: str
    model: str
    base_url: str
    ask: bool


class RunState(RunInput, total=False):
    """The root graph's state."""

    decisions: int  # how often `decide` has been asked
    lowerable: bool  # whether the kernel compiler could write a first candidate
    seeds: list[str]  # ids of the first candidates
    refused: list[str]  # those of them that an early proof refuses
    added: list[str]  # the role of each island that users added, "" where they named none
    ending: str  # why the search ended
    islands: Annotated[dict[str, Any], merge_islands]  # the state in which each island ended, by its number
    winner: str  # candidate id, "" when nothing was accepted


class IslandState(TypedDict, total=False):
    """The state of one island while it loops its generations."""

    run: str
    island: int
    added: int  # islands that users had added when this one was sent
    generation: int
    population: dict[str, float]  # candidate -> merit
    dry: list[str]  # parents from which every step has been tried
    memory: dict[str, str]  # what each strategy keeps, by its name (graph/search/strategy.py)
    directives: list[int]  # ids of those that its experts are shown
    inbox_after: int
    orders: UserOrders  # open orders of users about candidates and the role
    stop: Stop | None  # None while it goes on
    best: float  # highest merit
    idle: int  # generations since `best` rose
    misses: int  # steps in a row that gave no candidate
    broken: str  # a failed candidate that the diagnostician may still repair, or ""
    repairs: int  # repairs in a row
    # the step at hand: what its nodes hand on
    step: str  # its name, see step_name
    outside: Outside  # set by select
    parent: str  # set by select
    given: int  # set by select: the directive with the user's file that this step evaluates, or 0
    ordered: int  # set by select: the directive that said where this step begins, or 0
    diagnosis: Diagnosis | None  # set by diagnose
    experts: list[ExpertName]  # set by diagnose: those still to be asked, the one at work first
    wants: Wants  # set by the expert at work
    turns: int  # how often it has called tools
    silent_s: float | None  # a model gave an expert of this step no answer: seconds until it may be asked again
    candidate: str  # set by write, "" when the step gave none
    text: str  # sha256 of the candidate's file
    outcome: str  # why the candidate's tests ended early, "" when it passed them
    proven: bool  # the full protocol was spent on it
    islands: Annotated[dict[str, Any], merge_islands]


def step_name(island: int, generation: int) -> str:
    """The step's name, like `i2g5`: a key of the journal and of its random streams, and in names of proposals."""
    return f"i{island}g{generation}"


def island_of(step: str) -> int:
    """The island number in a step's name."""
    return int(step[1:].partition("g")[0])


class IslandOutput(TypedDict, total=False):
    """Only a key with a reducer may flow up: several islands end in one superstep."""

    islands: Annotated[dict[str, Any], merge_islands]
