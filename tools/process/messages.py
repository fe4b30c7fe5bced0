"""Typed messages between processes: pydantic models, checked where they are read. Free of torch.

Messages are small. Tensors never travel in them: a `Packing` describes tensors that lie in shared memory.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.process.channel import ChannelGarbled

MOST_FACTS = 64  # entries of one table in a message from an untrusted process
LINE_CHARS = 600  # characters of a line in such a message

T = TypeVar("T")
A = TypeVar("A")


def _check_size(table: Any) -> Any:
    if isinstance(table, dict) and len(table) > MOST_FACTS:
        raise ValueError(f"{len(table)} entries instead of at most {MOST_FACTS}")
    return table


class _StopsAtFirst(FailFast):
    __hash__ = object.__hash__  # as `X | None` needs


# Reading stops at the first wrong item: one error for each of 16 MB of wrong items takes 2.4 GB of memory.
Items = Annotated[list[T], _StopsAtFirst()]
Facts = Annotated[dict[str, T], BeforeValidator(_check_size)]
Line = Annotated[str, AfterValidator(lambda text: text[:LINE_CHARS])]  # a text that is cut


class Message(BaseModel):
    """A message, or a part of one. A field of another type than declared is an error, and so is an unknown field."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants")

    def encoded(self) -> bytes:
        """The message as JSON, with Infinity and NaN. Halves of surrogate pairs become question marks."""
        try:
            return self.__pydantic_serializer__.to_json(self)
        except PydanticSerializationError:  # Python's texts may hold such halves, JSON's may not
            return json.dumps(self.model_dump(), ensure_ascii=False).encode(errors="replace")


class Question(Message, Generic[A]):
    """A message that is answered by a message of type `A`, which a subclass finds in `answer_type`."""

    answer_type: ClassVar[Any] = None

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        given = cls.__mro__[1].__pydantic_generic_metadata__["args"]  # type: ignore[attr-defined]
        cls.answer_type = given[0] if given else cls.answer_type


class Packing(Message):
    """The description of a packed value (`tools.task.bundle`): its tree in JSON types, and its tensors' layouts.

    `writes` are the numbers of the tensors that the reference's forward writes to.
    """

    tree: Any
    specs: list[TensorSpec]
    writes: list[int] = []


class Malformed(Exception):
    """A JSON object that is not the expected message. `field`: the first wrong one, "" if the kind is unknown."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field}: {problem}" if field else problem)


def read(adapter: TypeAdapter[T], text: bytes) -> T:
    """The message in a text. Raises ChannelGarbled if it is no JSON object, Malformed if it is another object."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        if not first["loc"] and first["type"] in ("json_invalid", "dict_type", "model_type"):
            raise ChannelGarbled(f"not a message: {first['msg'][:200]}") from None
        raise Malformed(".".join(str(part)[:60] for part in first["loc"][1:]), first["msg"][:200]) from None
