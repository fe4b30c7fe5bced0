"""The brain of a run with models: each expert thinks with a model of its own, or with the playbook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import BaseModel

from foundry.agents.brain import Brain, Listener
from foundry.agents.brief import Brief
from foundry.agents.chat.brain import ChatModelBrain
from foundry.agents.chat.client import Patience
from foundry.agents.chat.options import TapeOptions
from foundry.agents.chat.tape import Tape
from foundry.agents.judgement import AuditEvidence
from foundry.agents.ledger import ModelLedger
from foundry.agents.models.models import Models
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.prompt_text.sections import Prompt
from foundry.agents.talk import ToolRequest
from foundry.knowledge.candidate import Judgement
from foundry.knowledge.thought import Diagnosis, ExpertName, Proposal

FormT = TypeVar("FormT", bound=BaseModel)


class ModelsBrain:
    """Implements Brain."""

    def __init__(self, models: Models, brains: Mapping[str, ChatModelBrain], playbook: PlaybookBrain) -> None:
        """`brains` holds a brain for each model by name; an expert without a model gets the playbook."""
        self.name = models.title
        self.models = models
        self.brains = brains
        self.playbook = playbook

    async def diagnose(self, brief: Brief) -> Diagnosis:
        """Diagnosis by the diagnostician's first model."""
        return await self._first("diagnostician").diagnose(brief)

    async def propose(self, expert: ExpertName, brief: Brief) -> Proposal | ToolRequest | None:
        """Proposal, or a request of tools, by the expert's model that `brief.model` names."""
        return await self._of(expert, brief.model).propose(expert, brief)

    async def judge(self, evidence: AuditEvidence) -> Judgement | ToolRequest:
        """Judgement, or a request of tools, by the auditor's first model."""
        return await self._first("auditor").judge(evidence)

    async def answer(self, question: str, context: str) -> str:
        """Answer to a user's question, by the diagnostician's first model."""
        return await self._first("diagnostician").answer(question, context)

    async def fill(
        self, expert: ExpertName, prompt: Prompt, form: type[FormT], refuse: Callable[[FormT], str]
    ) -> FormT | None:
        """A form filled in by the expert's first model; None without one."""
        names = self.models.of(expert)
        return await self.brains[names[0]].fill(expert, prompt, form, refuse) if names else None

    def _of(self, expert: ExpertName, chosen: str) -> Brain:
        """The model chosen for this step. While its endpoint is left alone, another one of the expert's steps in."""
        names = self.models.of(expert)
        if chosen not in names:
            return self._first(expert)
        others = [name for name in names if name != chosen]
        awake = (name for name in (chosen, *others) if not self.brains[name].breaker.retry_s)
        return self.brains[next(awake, chosen)]

    def _first(self, expert: ExpertName) -> Brain:
        """The brain of the expert's first model, or the playbook."""
        names = self.models.of(expert)
        return self.brains[names[0]] if names else self.playbook


def open_models(
    models: Models,
    *,
    ledger: ModelLedger,
    playbook: PlaybookBrain | None = None,
    limits: Patience | None = None,
    seed: int | None = None,
    tape: TapeOptions | None = None,
    listener: Listener | None = None,
) -> ModelsBrain:
    """The brain; the listener is told who thinks, where, and for what price. Raises UsageError without any access to
    one of the models, and for a recording that cannot be read or written."""
    playbook = playbook or PlaybookBrain()
    recording = Tape(tape) if tape is not None and (tape.record or tape.replay) else None
    brains = {
        spec.name: ChatModelBrain(
            spec.model,
            spec.base_url,
            name=spec.name,
            provider=spec.provider,
            ledger=ledger,
            fallback=playbook,
            options=spec.options,
            limits=limits,
            seed=seed,
            tape=recording,
            listener=listener,
        )
        for spec in models.specs
    }
    if listener is not None:
        for brain in brains.values():
            listener(brain.introduction)
    return ModelsBrain(models, brains, playbook)
