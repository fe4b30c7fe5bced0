"""Forms of a chat model's answer, and the reading of its text into them: JSON as asked for, fenced, or inside prose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from foundry.agents.chat.fences import FENCE, fenced_code, fenced_kernel, replacements

_MOST_STARTS = 40  # "{" positions tried in a text


class AnswerError(Exception):
    """The answer cannot be used; the message is shown to the model once so that it can repair it."""


class EditAnswer(BaseModel):
    """Replace `old`, which occurs exactly once in the parent's file as it was shown, by `new`."""

    model_config = ConfigDict(extra="ignore")
    old: str
    new: str


class LaunchAnswer(BaseModel):
    """One launch of a kernel, on a CPU one call of a function."""

    model_config = ConfigDict(extra="ignore")
    kernel: str
    args: list[str]
    grid: list[str] = Field(default_factory=list)
    block: list[str] = Field(default_factory=list)
    shared_bytes: str = "0"
    once: bool = False

    @field_validator("args", "grid", "block", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """A list of strings; a single number or expression stands for a list of one."""
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]

    @field_validator("shared_bytes", mode="before")
    @classmethod
    def _spelled(cls, value: Any) -> Any:
        """Before validation: an integer becomes its decimal text; other values stay."""
        return str(value) if isinstance(value, int) else value


class TunableAnswer(BaseModel):
    """An integer constant of the code that the tuner may choose."""

    model_config = ConfigDict(extra="ignore")
    values: list[int]
    default: int | None = None
    meaning: str = ""


class ScratchAnswer(BaseModel):
    """Memory between launches."""

    model_config = ConfigDict(extra="ignore")
    count: str
    dtype: str = "float32"
    kept: bool = False

    @field_validator("count", mode="before")
    @classmethod
    def _spelled(cls, value: Any) -> Any:
        """Before validation: an integer becomes its decimal text; other values stay."""
        return str(value) if isinstance(value, int) else value


class KernelForm(BaseModel):
    """Forms in which a model gives a kernel: a whole file, edits of the parent or of a draft, or code with its
    launches."""

    model_config = ConfigDict(extra="ignore")
    source: str = Field("", description='a whole candidate file; "" when not used')
    draft: int = Field(0, description="number of the tool call whose kernel this is, or is changed; 0: the parent")
    edits: list[EditAnswer] = Field(default_factory=list, description="replacements in the parent or the draft")
    code: str = Field("", description='code of a kernel, in an answer usually in a fence; "" when not used')
    launches: list[LaunchAnswer] = Field(default_factory=list, description="launches of the code, in order")
    tunables: dict[str, TunableAnswer] | None = Field(None, description="integers that the tuner may choose, by name")
    constraints: list[str] | None = Field(None, description="conditions on the tunables")
    scratch: dict[str, ScratchAnswer] | None = Field(None, description="memory between launches, by name")

    @field_validator("tunables", mode="before")
    @classmethod
    def _valued(cls, value: Any) -> Any:
        """Expands `"ROWS": [1, 2, 4]`, which declares values only, to {"values": [1, 2, 4]}."""
        if not isinstance(value, dict):
            return value
        return {name: {"values": item} if isinstance(item, list) else item for name, item in value.items()}


class ProposalAnswer(KernelForm):
    """One step: a kernel in one of its forms, a choice among the listed moves, or the kernel of a tool call."""

    rationale: str = Field("", description="why, with the numbers of the evidence")
    expected: str = Field("", description="the expected effect, measurable")
    measure: str = Field("", description="what to measure to see whether it came true")
    moves: list[int] = Field(default_factory=list, description="numbers of listed moves; [] when not used")
    cites: list[str] = Field(default_factory=list, description="ids of directives and experience that are followed")


def changes_something(answer: KernelForm) -> bool:
    """True if the answer gives a kernel, or anything that is to be different in the parent or a draft."""
    declared = (answer.tunables, answer.constraints, answer.scratch)
    given = answer.source.strip() or answer.code.strip() or answer.edits or answer.launches
    return bool(given) or any(part is not None for part in declared)


class JudgementAnswer(BaseModel):
    """The auditor's opinion."""

    model_config = ConfigDict(extra="ignore")
    judgement: str = Field(description="two or three sentences on whether this is genuine kernel work")
    doubt: bool = Field(description="true to veto")
    reason: str = Field("", description="why it is doubted")
    quote: str = Field("", description="what shows it: a line of the file, words of a gate or a tool's answer")


AnswerT = TypeVar("AnswerT", bound=BaseModel)


@cache
def schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of an answer for servers that constrain their output: every field required, no other allowed."""
    schema = kind.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        part["additionalProperties"] = False
        part["required"] = list(part["properties"])
        for field in part["properties"].values():
            field.pop("default", None)
    return schema


def parse(text: str, kind: type[AnswerT]) -> AnswerT:
    """The first JSON object of the text that is a valid answer of this kind. Raises AnswerError with a reason for the
    model.

    A proposal is completed from the fences beside it. A fence alone also counts as a proposal.
    """
    problem = "there is no JSON object in the answer"
    for document in documents(text):
        try:
            answer = kind.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc'])) or 'the object'}: {first['msg']}"
            continue
        return with_fences(answer, text) if isinstance(answer, ProposalAnswer) else answer
    if issubclass(kind, ProposalAnswer):
        answer = with_fences(kind.model_validate({"rationale": FENCE.sub("", text).strip()[:2000]}), text)
        if answer.source or answer.code or answer.edits:
            return answer
    raise AnswerError(problem)


def with_fences(answer: AnswerT, text: str) -> AnswerT:
    """A proposal completed by the code or replacements in the text's fences, if it has no kernel itself; other answers
    as they are."""
    if not isinstance(answer, ProposalAnswer):
        return answer
    if "```" in answer.source:
        return answer.model_copy(update={"source": fenced_kernel(answer.source) or answer.source})
    if answer.moves or answer.edits or answer.source or answer.code:
        return answer
    if edits := replacements(text):
        return answer.model_copy(update={"edits": [EditAnswer(old=old, new=new) for old, new in edits]})
    if answer.draft:
        return answer  # the draft as it is: code beside it illustrates
    if source := fenced_kernel(text):
        return answer.model_copy(update={"source": source})
    return answer.model_copy(update={"code": fenced_code(text)})


def documents(text: str) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects of the text: the whole, each fence, then each that starts at a brace. Accepts raw
    newlines."""
    decoder = json.JSONDecoder(strict=False)
    whole = [text.strip(), *(found[2].strip() for found in FENCE.finditer(text))]
    starts = [found.start() for found in re.finditer(r"\{", text)][:_MOST_STARTS]
    for part in [*whole, *(text[start:] for start in starts)]:
        try:
            document, _ = decoder.raw_decode(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            yield _writable(document)


def _writable(value: Any) -> Any:
    """The document with lone surrogates, which no file can hold, replaced by "?"."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_writable(item) for item in value]
    return {key: _writable(item) for key, item in value.items()} if isinstance(value, dict) else value
