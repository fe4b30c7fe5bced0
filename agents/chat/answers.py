"""What a chat model may answer, and how its text becomes that: JSON as asked for, fenced or buried in prose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

# possessive, because a long line without an end must not cost quadratic time
_FENCE = re.compile(r"```[ \t]*+([\w+-]*+)[^\n]*+\n(.*?)(?:\n```|\Z)", re.DOTALL)
_MOST_STARTS = 40  # "{" positions tried in a text


class AnswerError(Exception):
    """The answer cannot be used; the message is shown to the model once so that it can repair it."""


class EditAnswer(BaseModel):
    """Replace `old`, which occurs exactly once in the parent's file as it was shown, by `new`."""

    model_config = ConfigDict(extra="ignore")
    old: str
    new: str


class ProposalAnswer(BaseModel):
    """One step: a choice among the listed moves, edits of the parent's file, a whole new file, or one that a tool was
    called with."""

    model_config = ConfigDict(extra="ignore")
    rationale: str = Field("", description="why, with the numbers of the evidence")
    expected: str = Field("", description="the expected effect, measurable")
    moves: list[int] = Field(default_factory=list, description="numbers of listed moves; [] when not used")
    edits: list[EditAnswer] = Field(default_factory=list, description="edits of the parent's file; [] when not used")
    source: str = Field("", description='a whole candidate file; "" when not used')
    draft: int = Field(0, description="number of the tool call whose kernel this is; 0 when not used")
    cites: list[str] = Field(default_factory=list, description="ids of directives and experience that are followed")


class DiagnosisAnswer(BaseModel):
    """Why the candidate failed and the one thing to do."""

    model_config = ConfigDict(extra="ignore")
    cause: str = Field(description="the cause, with the line or number that shows it")
    action: str = Field(description="one recommended action")
    kernel: str = Field("", description="the kernel it is about")


class JudgementAnswer(BaseModel):
    """The auditor's opinion."""

    model_config = ConfigDict(extra="ignore")
    judgement: str = Field(description="two or three sentences on whether this is genuine kernel work")
    doubt: bool = Field(description="true to veto")
    reason: str = Field("", description="the evidence for the doubt")


AnswerT = TypeVar("AnswerT", bound=BaseModel)


@cache
def schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema for servers that constrain their answers: every field required, nothing else allowed."""
    schema = kind.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        part["additionalProperties"] = False
        part["required"] = list(part["properties"])
        for field in part["properties"].values():
            field.pop("default", None)
    return schema


def parse(text: str, kind: type[AnswerT]) -> AnswerT:
    """The first JSON object of the text that fits; a whole kernel file in a Python fence also counts as a proposal.

    Raises AnswerError with the reason that a model can act on.
    """
    problem = "there is no JSON object in the answer"
    for document in documents(text):
        try:
            answer = kind.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc'])) or 'the object'}: {first['msg']}"
            continue
        return _with_fenced_source(answer, text) if isinstance(answer, ProposalAnswer) else answer
    source = fenced_kernel(text)
    if source and issubclass(kind, ProposalAnswer):
        return kind.model_validate({"rationale": _FENCE.sub("", text).strip()[:2000], "source": source})
    raise AnswerError(problem)


def fenced_kernel(text: str) -> str:
    """The longest fenced block that defines ModelNew, "" when there is none."""
    blocks = [found[2].strip("\n") + "\n" for found in _FENCE.finditer(text) if "class ModelNew" in found[2]]
    return max(blocks, key=len, default="")


def _with_fenced_source(answer: AnswerT, text: str) -> AnswerT:
    if not isinstance(answer, ProposalAnswer):
        return answer
    if "```" in answer.source:
        return answer.model_copy(update={"source": fenced_kernel(answer.source) or answer.source})
    if not (answer.moves or answer.edits or answer.source or answer.draft):
        return answer.model_copy(update={"source": fenced_kernel(text)})
    return answer


def documents(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects of the text: the whole, each fence, then whatever starts at a brace. Raw newlines are accepted."""
    decoder = json.JSONDecoder(strict=False)
    whole = [text.strip(), *(found[2].strip() for found in _FENCE.finditer(text))]
    starts = [found.start() for found in re.finditer(r"\{", text)][:_MOST_STARTS]
    for part in [*whole, *(text[start:] for start in starts)]:
        try:
            document, _ = decoder.raw_decode(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            yield _writable(document)


def _writable(value: Any) -> Any:
    """The document with lone surrogates, which no file can hold, replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_writable(item) for item in value]
    return {key: _writable(item) for key, item in value.items()} if isinstance(value, dict) else value
