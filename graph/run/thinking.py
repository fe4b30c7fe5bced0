"""Records every call of a chat model in the run's trace, also the calls for a user's questions."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from foundry.agents.brain import Call, Notice
from foundry.graph.run.budget import Ledger
from foundry.graph.run.events import EventLog
from foundry.graph.run.inbox import find_wanted_state
from foundry.graph.run.run_directory import RunDirectory

if TYPE_CHECKING:
    from foundry.graph.run.opening import Parts
    from foundry.graph.run.services import Services

POLL_S = 0.2  # seconds between two looks at the budget and the user's words


def record_thought(said: Call | Notice, log: EventLog, run: RunDirectory) -> None:
    """Records a call with its cost, and its prompt and answer as blobs; or a notice about the model."""
    if isinstance(said, Notice):
        log.note("note", said.name, text=said.text, **said.facts)
        return
    log.note(
        "expert",
        said.expert,
        model=said.model,
        purpose=said.purpose,
        outcome=said.outcome,
        detail=said.detail,
        requests=said.requests,
        tokens=said.prompt_tokens + said.completion_tokens,
        prompt_tokens=said.prompt_tokens,
        completion_tokens=said.completion_tokens,
        dollars=said.dollars,
        call_s=said.seconds,
        system=run.keep(said.system),
        prompt=run.keep(said.prompt),
        answer=run.keep(said.answer),
        **({"bad_answer": run.keep(said.bad_answer), "repair": run.keep(said.repair)} if said.repair else {}),
        sections=dict(said.sections),
        standing=said.standing,
        cut=dict(said.cut),
        **({"variant": said.variant} if said.variant else {}),
    )


def ask_model(run: RunDirectory, question: str, context: str, parts: Parts) -> tuple[str, str]:
    """The model's answer to a user's free question and ""; or "" and the reason why there is none.

    It is paid from the run's budget and recorded in its trace, also while another process works on the run. Raises
    UsageError without access to a model.
    """
    log = EventLog(run.database, reading=True)  # a question is no work on the run: it adds nothing to its wall time
    ledger = Ledger(run.request, run, log)
    problem = ""

    def hear(said: Call | Notice) -> None:
        """Records a call and keeps its detail as the problem; ignores notices."""
        nonlocal problem
        if isinstance(said, Call):
            problem = said.detail
            record_thought(said, log, run)

    with log.at(None, "chat"):
        brain = parts.brain(run.request, ledger.thinking, hear)
        told = asyncio.run(brain.answer(question, context))
    return told, "" if told else problem


async def wait_for_model(services: Services, seconds: float) -> None:
    """Waits at most `seconds` until the model may be tried again, for an island that has nothing to do without it.

    Ends early if the budget is spent, or if the user pauses or stops the run. A replay does not wait.
    """
    if seconds <= 0.0 or services.journal.replaying:
        return
    with services.log.span("note", "waits for the model", seconds=seconds):
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0.0 and not services.ledger.why_exhausted():
            if find_wanted_state(services.directives())[0] != "go":
                return
            await asyncio.sleep(min(POLL_S, left))
            services.log.mark_alive()
