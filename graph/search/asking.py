"""Points at which a person decides, where the user asked for it (`--ask`): interrupts of the root graph.

A question stops the run with its state kept. It is answered in the terminal, by `foundry agent resume RUN --yes` or
`--no`, or in LangGraph's Studio. The journal keeps the answer: no question is asked
twice, and none in a replay.
"""

from __future__ import annotations

from typing import Any

from langgraph.types import interrupt

from foundry.agents.directives import parse
from foundry.agents.prices import in_words
from foundry.graph.run.services import Services
from foundry.graph.search.state import Stop
from foundry.knowledge.candidate import Evaluation
from foundry.knowledge.thought import Directive

MORE = 0.5  # share of the first budget that one answer adds
YES = (True, "y", "yes", "true")


def ask(services: Services, name: str, text: str) -> bool:
    """Interrupts the graph with a question until a person answers. Returns True for yes, and if `ask` is off."""
    if not services.request.ask:
        return True
    return bool(services.journal.plain(f"ask/{name}", "outside", lambda: _interrupt(services, name, text)))


def _interrupt(services: Services, name: str, text: str) -> bool:
    """Interrupts the graph with a question to the user; True if the answer is yes."""
    said: Any = interrupt({"question": name, "text": text})
    meant = (said.strip().lower() if isinstance(said, str) else said) in YES
    services.log.note("note", "answered", question=text, answer="yes" if meant else "no")
    return meant


def ask_for_model(services: Services) -> bool:
    """Asks before the first call of a model that costs something, or might. True if it may think, or all are free."""
    request = services.request
    paid = [spec for spec in request.models.specs if not spec.price.is_free]
    if not paid:
        return True
    limits = request.limits
    caps = [f"{limits.tokens} tokens"] if limits.tokens is not None else []
    caps += [f"{limits.dollars:g} dollars"] if limits.dollars is not None else []
    caps += [f"{limits.calls} calls"] if limits.calls is not None else []
    most = f"at most {' and '.join(caps)}" if caps else "without a cap on tokens, dollars or calls"
    who = "; ".join(f"{spec.name} at {spec.base_url or 'its usual endpoint'}, {in_words(spec.price)}" for spec in paid)
    they = "it" if len(paid) == 1 else "they"
    text = f"{who}, {most}: may {they} think? (no: the playbook does)"
    return ask(services, "model", text)


def ask_for_budget(services: Services, number: int, stops: list[Stop]) -> bool:
    """Asks if a search that ended by its budget may go on with half as much again. If so, grants it and returns True.

    False without a question if no person is to be asked, or if something else ended it. `number`: how often `decide`
    has been asked.
    """
    if not services.request.ask or not any(stop["kind"] == "budget" for stop in stops):
        return False
    evaluations = max(1, int(MORE * services.request.max_evaluations))
    minutes = round(MORE * services.request.max_minutes, 2)
    spent, best = services.ledger.spent(), services.best()
    found = f"the best is {best.candidate.id}, {_speed(best)}" if best else "nothing is correct yet"
    text = (
        f"the budget is used up ({spent.evaluations} evaluations, {spent.minutes:.1f} minutes); {found}: "
        f"search on with {evaluations} more evaluations and {minutes:g} more minutes?"
    )
    if not ask(services, f"budget{number}", text):
        return False
    services.journal.plain(f"grant{number}", "outside", lambda: _grant(services, evaluations, minutes))
    return True


def _grant(services: Services, evaluations: int, minutes: float) -> list[int]:
    """Posts directives that grant more evaluations and minutes; returns their ids."""
    lines = (f"budget +{evaluations} evaluations", f"budget +{minutes:g} minutes")
    return [services.run.inbox.post(said) for line in lines if isinstance(said := parse(line), Directive)]


def ask_for_export(services: Services, winner: Evaluation) -> bool:
    """Asks before the proven winner is written with its receipt. True if it may be."""
    return ask(services, "export", f"{winner.candidate.id} is proven, {_speed(winner)}: export it with its receipt?")


def _speed(evaluation: Evaluation) -> str:
    """The measured speedup and its interval in words."""
    timing = evaluation.timing
    if timing is None:
        return "not timed"
    low, high = timing.speedup_ci95
    return f"{timing.speedup:.2f}x over PyTorch eager [{low:.2f}, {high:.2f}]"
