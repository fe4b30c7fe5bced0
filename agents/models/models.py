"""The chat models of a run and their assignment to experts; kept with the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from foundry.agents.chat.endpoint import Endpoint, endpoint_of
from foundry.agents.chat.options import ChatOptions
from foundry.agents.prices import Price, price_of
from foundry.knowledge.thought import ExpertName

PLAYBOOK = "playbook"  # the name of the brain without a model


@dataclass(frozen=True)
class ModelSpec:
    """One model: what the user calls it, what its endpoint calls it, where that is, and how it is asked."""

    name: str
    model: str
    base_url: str | None = None
    provider: str | None = None  # langchain's name of one without an OpenAI-compatible interface
    options: ChatOptions = field(default_factory=ChatOptions)

    @property
    def endpoint(self) -> Endpoint:
        """The model's endpoint and key. Raises UsageError without any access, MissingTool without the package of its
        provider."""
        found = endpoint_of(self.model, self.base_url, self.options.key_env, self.provider)
        if self.provider:
            from foundry.agents.chat.transport import Transport  # with the whole library, for what few runs have

            Transport(self.model, found, self.options, retries=0).check()
        return found

    @property
    def price(self) -> Price:
        """The price that the options give, else the one of the table."""
        return price_of(self.model, self.options.price)


@dataclass(frozen=True)
class Models:
    """`everyone` are the models of experts that `experts` does not name; an expert without any thinks with the
    playbook. Of several models of one expert the first diagnoses, judges and answers; steps are proposed in turns."""

    specs: tuple[ModelSpec, ...] = ()
    everyone: tuple[str, ...] = ()
    experts: Mapping[ExpertName, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """True if there is any model."""
        return bool(self.specs)

    @property
    def title(self) -> str:
        """All of them in one word: the name of the brain."""
        return "+".join(spec.name for spec in self.specs) or PLAYBOOK

    def of(self, expert: ExpertName) -> tuple[str, ...]:
        """Names of the expert's models; of those for everyone, if it has none of its own."""
        return self.experts.get(expert, self.everyone)

    def spec(self, name: str) -> ModelSpec:
        """The model of that name. Raises StopIteration if there is none."""
        return next(spec for spec in self.specs if spec.name == name)

    def named(self, names: tuple[str, ...]) -> tuple[ModelSpec, ...]:
        """The models of these names, in their order."""
        return tuple(self.spec(name) for name in names)


def one_model(model: str, base_url: str | None = None, options: ChatOptions | None = None) -> Models:
    """One model for all experts."""
    return Models((ModelSpec(model, model, base_url, options=options or ChatOptions()),), (model,))


def models_for(now: Models, name: str) -> Models:
    """The models of a run whose user names another one: `playbook` is none; a model that the run has thinks for all
    experts; any other is asked where the run's first one is, or at its usual endpoint."""
    if name == PLAYBOOK:
        return Models()
    known = [spec for spec in now.specs if spec.name == name]
    if known:
        return Models((known[0],), (name,))
    if now.specs:
        return Models((replace(now.specs[0], name=name, model=name),), (name,))
    return one_model(name)
