"""A chat-model brain at a scripted server, and what it reported."""

from __future__ import annotations

from typing import Any

from foundry.agents.brain import Call, Notice
from foundry.agents.chat.brain import ChatModelBrain
from foundry.agents.chat.client import Patience
from foundry.agents.chat.dialect import EndpointDialect
from foundry.agents.chat.options import ChatOptions
from foundry.agents.chat.tape import Tape
from foundry.agents.judgement import AuditEvidence
from foundry.agents.ledger import ModelLedger
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.knowledge.candidate import Judgement
from foundry.knowledge.thought import Diagnosis

LATENCY = Diagnosis("c1", None, "memory_latency", "8 GB/s is 40 % of the measured 20 GB/s", "unroll", "k0")
QUICK = Patience(attempts=3)
SHORT = ChatOptions(answer_tokens=2000, request_s=60.0)  # an attempt given up would take another's answer


class Session:
    """A brain, its server and what it reported."""

    def __init__(
        self,
        toy: Any,
        server: Any,
        limits: Patience = QUICK,
        options: ChatOptions = SHORT,
        model: str = "scripted-1",
        tape: Tape | None = None,
        provider: str | None = None,
        **caps: Any,
    ) -> None:
        self.toy, self.server = toy, server
        self.calls: list[Call] = []
        self.notices: list[Notice] = []
        self.ledger = ModelLedger(**caps)
        self.playbook = PlaybookBrain(toy.library)
        self.brain = ChatModelBrain(
            model,
            server.url,
            ledger=self.ledger,
            fallback=self.playbook,
            limits=limits,
            options=options,
            seed=7,
            tape=tape,
            provider=provider,
            listener=self.hear,
        )

    def client_speaks_like_openai(self) -> None:
        """As if the endpoint were OpenAI's, where the newer token field is tried first."""
        self.brain.client._dialect = EndpointDialect.of(is_openai=True)

    def hear(self, said: Call | Notice) -> None:
        if isinstance(said, Notice):
            self.notices.append(said)
        else:
            self.calls.append(said)

    async def propose(self, **changes: Any) -> Any:
        return await self.brain.propose("tiling", self.toy.brief(**{"diagnosis": LATENCY, **changes}))

    async def judge(self, evidence: AuditEvidence) -> Judgement:
        judged = await self.brain.judge(evidence)
        assert isinstance(judged, Judgement)
        return judged

    async def is_playbooks(self, proposal: Any) -> bool:
        """Whether the playbook took the step."""
        own = await self.playbook.propose("tiling", self.toy.brief(diagnosis=LATENCY))
        return proposal == own and own is not None and own.brain == "playbook"


def move(value: int = 0, **more: Any) -> dict[str, Any]:
    document = {"rationale": "40 % of bandwidth", "expected": "1.2x", "moves": [value], "edits": [], "source": ""}
    return {**document, "cites": [], **more}
