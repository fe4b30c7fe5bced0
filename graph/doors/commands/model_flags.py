"""The options of `foundry agent solve` that are about the chat model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from foundry.agents.chat.options import EFFORTS, MOST_CALLS, MOST_PARALLEL, ChatOptions, TapeOptions
from foundry.agents.ledger import LEAST_ANSWER_TOKENS

DEFAULT = ChatOptions()

ModelFlag = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[EXPERT=]NAME,...",
        help="Chat model for all experts, or for one; repeat it. Several: each step comes from the one that promises "
        "most for its price. playbook: none. Default: FOUNDRY_MODEL, foundry.toml, the playbook.",
    ),
]
BaseUrlFlag = Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint of the model; default: OpenAI's.")]
ProviderFlag = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="langchain's name of a provider without such an endpoint: anthropic, ... (with langchain-NAME).",
    ),
]
KeyFlag = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="NAME",
        help="Environment variable with the endpoint's key. OPENAI_API_KEY goes to OpenAI by itself, nowhere else.",
    ),
]
PriceFlag = Annotated[
    str | None,
    typer.Option(metavar="IN,OUT", help="Dollars per million tokens of prompt and of answer; default: a table."),
]
AnswerTokensFlag = Annotated[
    int | None,
    typer.Option(
        min=LEAST_ANSWER_TOKENS,
        help=f"Most tokens of one answer, the model's reasoning among them; default: {DEFAULT.answer_tokens}.",
    ),
]
RequestSecondsFlag = Annotated[
    float | None,
    typer.Option(
        "--request-seconds",
        min=0.01,
        help=f"A request is given up after this many seconds; default: {DEFAULT.request_s:g}.",
    ),
]
ParallelFlag = Annotated[
    int | None,
    typer.Option("--parallel-calls", min=1, max=MOST_PARALLEL, help=f"Requests at once; default: {DEFAULT.parallel}."),
]
TemperatureFlag = Annotated[
    float | None, typer.Option(min=0.0, max=2.0, help="Sampling temperature; default: the endpoint's.")
]
ReasoningFlag = Annotated[
    str | None, typer.Option("--reasoning-effort", help=f"{', '.join(EFFORTS)}; default: the endpoint's.")
]
ToolCallsFlag = Annotated[
    int | None,
    typer.Option(
        "--tool-calls",
        min=0,
        max=MOST_CALLS,
        help=f"Tools that an expert may call before it answers; 0: none; default: {DEFAULT.tool_calls}.",
    ),
]
RecordFlag = Annotated[Path | None, typer.Option(help="Add every request to a model and its answer to this file.")]
ReplayFlag = Annotated[
    Path | None,
    typer.Option("--replay", help="Answer requests to models from this file; one that it lacks ends the run."),
]
AskMissingFlag = Annotated[bool, typer.Option("--ask-missing", help="With --replay: ask the model what it lacks.")]


@dataclass(frozen=True)
class ModelFlags:
    """The user's flags about the chat model; None if not given."""

    model: ModelFlag = None
    base_url: BaseUrlFlag = None
    provider: ProviderFlag = None
    api_key_env: KeyFlag = None
    price: PriceFlag = None
    answer_tokens: AnswerTokensFlag = None
    request_s: RequestSecondsFlag = None
    parallel: ParallelFlag = None
    temperature: TemperatureFlag = None
    reasoning_effort: ReasoningFlag = None
    tool_calls: ToolCallsFlag = None
    record: RecordFlag = None
    recording: ReplayFlag = None
    ask_missing: AskMissingFlag = False

    @property
    def options(self) -> dict[str, Any]:
        """The flags about the model itself, by the names of `foundry.toml`."""
        return {
            "base_url": self.base_url,
            "provider": self.provider,
            "api_key_env": self.api_key_env,
            "price": self.price,
            "answer_tokens": self.answer_tokens,
            "request_seconds": self.request_s,
            "parallel_calls": self.parallel,
            "temperature": self.temperature,
            "reasoning_effort": self.reasoning_effort,
            "tool_calls": self.tool_calls,
        }

    @property
    def tape(self) -> TapeOptions:
        """The files that requests are recorded to and answered from.

        Their paths are absolute, because a run may be resumed from another folder.
        """
        return TapeOptions(_absolute(self.record), _absolute(self.recording), self.ask_missing)


def _absolute(file: Path | None) -> str | None:
    """The file's absolute path as text; None without a file."""
    return str(file.absolute()) if file else None
