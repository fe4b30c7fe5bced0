"""Typed messages between processes. Free of torch.

A border between two processes is a Protocol: its methods are the questions, their parameters the fields of a question,
and what they return is the answer. Pydantic makes a model of each question, discriminated by `do`, and checks messages
where they are read. Messages are small: tensors lie in shared memory, and a `Packing` describes them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticSerializationError

from foundry.knowledge.errors import FoundryError
from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.process.channel import ChannelGarbled

MOST_FACTS = 64  # entries of one table in a message from an untrusted process
LINE_CHARS = 600  # characters of a line in such a message

T = TypeVar("T")
A = TypeVar("A")
P = ParamSpec("P")


def _check_size(table: Any) -> Any:
    """The table unchanged. Raises ValueError for more than MOST_FACTS entries."""
    if isinstance(table, dict) and len(table) > MOST_FACTS:
        raise ValueError(f"{len(table)} entries instead of at most {MOST_FACTS}")
    return table


# Reading stops at the first wrong item: one error for each of 16 MB of wrong items takes 2.4 GB of memory.
Items = Annotated[list[T], FailFast()]
Facts = Annotated[dict[str, T], BeforeValidator(_check_size)]
Line = Annotated[str, AfterValidator(lambda text: text[:LINE_CHARS])]  # a text that is cut


class Message(BaseModel):
    """One message. A field of another type than declared is an error, and so is an unknown field."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants")

    def encoded(self) -> bytes:
        """The message as JSON, with Infinity and NaN. Halves of surrogate pairs become question marks."""
        try:
            return self.__pydantic_serializer__.to_json(self)
        except PydanticSerializationError:  # Python's texts may hold such halves, JSON's may not
            return json.dumps(self.model_dump(), ensure_ascii=False).encode(errors="replace")


class Asked(Message):
    """A question; further fields are parameters of the method `do`. Its answer repeats the `number`."""

    model_config = ConfigDict(frozen=False)
    do: str
    number: int = 0

    def answered_by(self, target: object) -> Any:
        """The answer that the target's method `do` gives."""
        return getattr(target, self.do)(**{name: value for name, value in self if name not in ("do", "number")})


class Done(Message, Generic[A]):
    """An answer. Unknown fields of a hostile process are never looked at."""

    model_config = ConfigDict(extra="ignore")
    says: Literal["done"] = "done"
    number: int = 0
    answer: A


class NotDone(Message):
    """Says in a `line` why there is no answer, and the `remedy`; `kind` is the outcome or the error's name."""

    model_config = ConfigDict(extra="ignore")
    says: Literal["failed"] = "failed"
    number: int = 0
    kind: str
    line: str
    remedy: str = ""

    @staticmethod
    def because(error: FoundryError, number: int = 0) -> NotDone:
        return NotDone(number=number, kind=type(error).__name__, line=error.problem, remedy=error.remedy)


@dataclass(frozen=True)
class Packing:
    """The description of a packed value (`tools.task.bundle`): its tree in JSON types, and its tensors' layouts.

    `writes` are the numbers of the tensors that the reference's forward writes to.
    """

    tree: Any
    specs: list[TensorSpec]
    writes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Question(Generic[A]):
    """A question to be sent, and the reader of its answer."""

    asked: Asked
    answers: TypeAdapter[Any]

    @property
    def do(self) -> str:
        return self.asked.do

    def encoded(self, number: int = 0) -> bytes:
        """The command as JSON in bytes, under this number."""
        self.asked.number = number
        return self.asked.encoded()

    def read(self, text: bytes) -> Done[A] | NotDone:
        """The answer in a text. Raises ChannelGarbled if it is no JSON object, Malformed if it is another object."""
        try:
            found: Done[A] | NotDone = self.answers.validate_json(text)
            return found
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            if not first["loc"] and first["type"] in ("json_invalid", "dict_type"):
                raise ChannelGarbled(f"not a message: {first['msg'][:200]}") from None
            raise Malformed(".".join(str(part)[:60] for part in first["loc"][1:]), first["msg"][:200]) from None


class Malformed(ValueError):
    """A JSON object that is not the expected message. `field`: the first wrong one, "" if the kind is unknown."""

    def __init__(self, field: str, problem: str) -> None:
        """Keeps the field; the message is "field: problem"."""
        self.field = field
        super().__init__(f"{field}: {problem}" if field else problem)


@cache
def _forms(method: Callable[..., Any]) -> tuple[type[Asked], TypeAdapter[Any]]:
    """The model of a method's question, and the reader of answers to it."""
    hints, name = get_type_hints(method, include_extras=True), method.__name__
    given = [one for one in inspect.signature(method).parameters.values() if one.name in hints]
    fields: dict[str, Any] = {
        one.name: (hints[one.name], ... if one.default is inspect.Parameter.empty else one.default) for one in given
    }
    kind: Any = Literal[name]
    asked = create_model(f"Ask_{name}", __base__=Asked, do=(kind, name), **fields)
    return asked, _told_apart("says", Done.__class_getitem__(hints["return"]), NotDone)


def _told_apart(field: str, *models: Any) -> TypeAdapter[Any]:
    """The reader of any of the models, which have different values of the field."""
    kinds: Any = Annotated[reduce(or_, models), Field(discriminator=field)]
    return TypeAdapter(kinds)


def asking(method: Callable[Concatenate[Any, P], A], *_: P.args, **fields: P.kwargs) -> Question[A]:
    """The question that a border's method stands for, with its parameters by name."""
    asked, answers = _forms(method)
    given: dict[str, Any] = fields
    return Question(asked(**given), answers)


@cache
def questions_of(border: type, *others: type[Asked]) -> TypeAdapter[Any]:
    """The reader of a border's questions, and of others."""
    methods = [value for name, value in vars(border).items() if inspect.isfunction(value) and name[0] != "_"]
    return _told_apart("do", *(_forms(one)[0] for one in methods), *others)
