"""Reads the user's choice of chat models from flags, the environment and `foundry.toml`.

Flags override the environment (`FOUNDRY_MODEL`, `FOUNDRY_BASE_URL`, ...), which overrides the file in the current
folder or above it. No setting holds a key; one names the environment variable that does.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from foundry.agents.chat.options import MOST_CALLS, MOST_PARALLEL, ChatOptions, ReasoningEffort, price_in_words
from foundry.agents.expert import experts
from foundry.agents.ledger import LEAST_ANSWER_TOKENS
from foundry.agents.models.models import PLAYBOOK, Models, ModelSpec
from foundry.knowledge.errors import UsageError
from foundry.knowledge.thought import ExpertName

FILE = "foundry.toml"
PREFIX = "FOUNDRY_"  # prefix of the environment variables that stand for flags
LARGEST_BYTES = 64 << 10
DEFAULT = ChatOptions()


def _as_price(value: Any) -> Any:
    """ "2.5,15" as two numbers; other values as they are. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return price_in_words(value)
    except UsageError as error:
        raise ValueError(str(error)) from error


def _other_than_openai(provider: str) -> str:
    """Returns the provider; raises ValueError for OpenAI, which needs none."""
    if provider == "openai":
        raise ValueError("OpenAI's interface is asked without a provider")
    return provider


def _as_list(value: Any) -> Any:
    """A single text becomes a list of one; other values stay."""
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_as_list)]
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelOptions(BaseModel):
    """How a model is asked: a table `[models.NAME]` of the file, its top for all models, flags, the environment."""

    model_config = ConfigDict(extra="forbid")

    base_url: str | None = None
    provider: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$"), AfterValidator(_other_than_openai)] | None = None
    """langchain's name of a provider without an OpenAI-compatible interface; OpenAI needs none."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Name of the environment variable that holds the key; never the key itself."""
    price: Annotated[tuple[Dollars, Dollars], BeforeValidator(_as_price)] | None = None
    """Dollars per million tokens of prompt and of answer."""
    answer_tokens: Annotated[int, Field(ge=LEAST_ANSWER_TOKENS)] | None = None
    request_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    parallel_calls: Annotated[int, Field(ge=1, le=MOST_PARALLEL)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    reasoning_effort: ReasoningEffort | None = None
    tool_calls: Annotated[int, Field(ge=0, le=MOST_CALLS)] | None = None

    @property
    def said(self) -> dict[str, Any]:
        """The options that were given, without those that are None."""
        return self.model_dump(exclude_none=True)


class ModelTable(ModelOptions):
    """A table `[models.NAME]`."""

    model: str | None = None
    """What the endpoint calls it; the table's name where it is not said."""


class SettingsFile(ModelOptions):
    """The content of `foundry.toml`: the models of the experts, and the options of each model."""

    model: Names = Field(default_factory=list)
    """For every expert that `experts` does not name; several: each step comes from the one that promises most."""
    experts: dict[str, Names] = Field(default_factory=dict)
    models: dict[str, ModelTable] = Field(default_factory=dict)


def read_models(wanted: list[str] | None = None, flags: Mapping[str, Any] | None = None) -> Models:
    """The models that the user chose. `wanted`: words of `--model`; `flags`: fields of ModelOptions, None if not given.

    Raises UsageError in one line, also for flags about a model if no model is chosen.
    """
    flags = {name: value for name, value in (flags or {}).items() if value is not None}
    path = find_file(Path.cwd())
    file = _read_file(path) if path else SettingsFile()
    everyone, by_expert = tuple(file.model), {name: tuple(found) for name, found in file.experts.items()}
    _check_experts(by_expert, str(path))
    said = os.environ.get(f"{PREFIX}MODEL", "")
    for words, place in ((said.split(",") if said else [], f"{PREFIX}MODEL"), (wanted or [], "--model")):
        general, particular = _cast(words, place)
        everyone, by_expert = general or everyone, {**by_expert, **particular}
    everyone, by_expert = _thinking(everyone), {name: _thinking(found) for name, found in by_expert.items()}
    names = dict.fromkeys([*everyone, *(name for found in by_expert.values() for name in found)])
    if flags and not names:
        flag = next(iter(flags)).replace("_", "-")
        raise UsageError(f"--{flag} is about a chat model, but none is asked for", "add --model NAME")
    over = {**_validated(_of_environment(), is_flag=False), **_validated(flags, is_flag=True)}
    return Models(tuple(_spec(name, file, over) for name in names), everyone, by_expert)


def find_file(folder: Path) -> Path | None:
    """The nearest `foundry.toml`, from a folder upwards."""
    return next((path for at in (folder, *folder.parents) if (path := at / FILE).is_file()), None)


def _read_file(path: Path) -> SettingsFile:
    """The settings in a file. Raises UsageError if it is too large, unreadable or not valid."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UsageError(f"{path} is larger than {LARGEST_BYTES >> 10} KB", "it holds only settings")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    try:
        return SettingsFile.model_validate(document)
    except ValidationError as error:
        raise UsageError(f"{path}: {_first_problem(error)}", _remedy(error)) from error


def _first_problem(error: ValidationError) -> str:
    """The place and the problem of the first error, without the value: the user may have written a key there."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {_words_of(first)}"


def _words_of(problem: Mapping[str, Any]) -> str:
    """The message of a validation error, without pydantic's "Value error, "."""
    return str(problem["msg"]).removeprefix("Value error, ")


def _remedy(error: ValidationError) -> str:
    """The remedy for an invalid settings file; "" if none is known."""
    where = str(error.errors()[0]["loc"][-1])
    if "key" in where:
        return "a key does not belong into a file: name its environment variable as api_key_env"
    return f"known are {', '.join(SettingsFile.model_fields)}" if error.errors()[0]["type"] == "extra_forbidden" else ""


def _of_environment() -> dict[str, str]:
    """The model options that are set in the environment, by name."""
    named = {name: os.environ.get(PREFIX + name.upper(), "") for name in ModelOptions.model_fields}
    return {name: value for name, value in named.items() if value}


def _validated(given: Mapping[str, Any], *, is_flag: bool) -> dict[str, Any]:
    """The options that were given, checked. Raises UsageError that names the flag or the environment variable."""
    try:
        return ModelOptions.model_validate(given).said
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = str(first["loc"][0])
        where = f"--{name.replace('_', '-')}" if is_flag else PREFIX + name.upper()
        raise UsageError(f"{where}: {_words_of(first)}") from error


def _cast(words: list[str], place: str) -> tuple[tuple[str, ...], dict[ExpertName, tuple[str, ...]]]:
    """`NAME` and `EXPERT=NAME` as (models of everyone, models by expert). Raises UsageError for any other form."""
    everyone: list[str] = []
    by_expert: dict[ExpertName, tuple[str, ...]] = {}
    for word in (part.strip() for item in words for part in item.split(",")):
        expert, is_particular, name = word.rpartition("=")
        if not name or (is_particular and not expert):
            raise UsageError(f"{place} {word!r}", "NAME, or EXPERT=NAME,EXPERT=NAME")
        if is_particular:
            by_expert[expert] = (*by_expert.get(expert, ()), name)
        else:
            everyone.append(name)
    _check_experts(by_expert, place)
    return tuple(everyone), by_expert


def _check_experts(by_expert: Mapping[str, tuple[str, ...]], place: str) -> None:
    """Raises UsageError for the first name that is no expert."""
    for expert in by_expert:
        if expert not in experts():
            raise UsageError(f"{place}: there is no expert {expert[:40]!r}", f"there are {', '.join(experts())}")


def _thinking(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names without duplicates and without the playbook, which is no model."""
    return tuple(name for name in dict.fromkeys(names) if name != PLAYBOOK)


def _spec(name: str, file: SettingsFile, over: Mapping[str, Any]) -> ModelSpec:
    """A model with its options: flags and environment before its table, that before the top of the file."""
    table = file.models.get(name, ModelTable())
    top = {key: value for key, value in file.said.items() if key in ModelOptions.model_fields}
    said = {**top, **table.said, **over}
    options = ChatOptions(
        answer_tokens=said.get("answer_tokens", DEFAULT.answer_tokens),
        request_s=said.get("request_seconds", DEFAULT.request_s),
        parallel=said.get("parallel_calls", DEFAULT.parallel),
        temperature=said.get("temperature"),
        reasoning_effort=said.get("reasoning_effort"),
        price=said.get("price"),
        key_env=said.get("api_key_env"),
        tool_calls=said.get("tool_calls", DEFAULT.tool_calls),
    )
    return ModelSpec(name, table.model or name, said.get("base_url"), said.get("provider"), options)
