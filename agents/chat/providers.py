"""Models whose provider has no OpenAI-compatible interface, through langchain's `init_chat_model`.

langchain and the provider's own package are an extra, imported when such a model is asked for. What a provider's class
raises is its own; here it is one error, with the status that the provider gave.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from foundry.agents.chat.calls import declarations
from foundry.agents.chat.endpoint import Endpoint
from foundry.agents.chat.options import ChatOptions
from foundry.knowledge.errors import MissingTool, UsageError

EXTRA = "pip install 'foundry[providers]'"


class ProviderFailed(Exception):
    """A provider gave no answer. `status_code` None: it was not reached, or its package does not say."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.response = getattr(error, "response", None)
        status = getattr(error, "status_code", getattr(self.response, "status_code", None))
        self.status_code = status if isinstance(status, int) else None


def open_provider(provider: str, model: str, endpoint: Endpoint, options: ChatOptions, answer_tokens: int) -> Any:
    """langchain's model. Raises MissingTool for a package that is not here, UsageError for a provider that langchain
    does not know or that lacks its key."""
    try:
        init_chat_model = importlib.import_module("langchain.chat_models").init_chat_model
    except ImportError as error:
        raise MissingTool(f"the provider {provider} needs langchain", EXTRA) from error
    wanted = {
        "base_url": endpoint.url or None,
        "api_key": endpoint.key,
        "temperature": options.temperature,
        "reasoning_effort": options.reasoning_effort,
    }
    said = {name: value for name, value in wanted.items() if value is not None}
    try:
        return init_chat_model(
            model,
            model_provider=provider,
            max_tokens=answer_tokens,
            timeout=2 * options.request_s,  # the clock around the whole request is the one that counts
            max_retries=0,
            **said,
        )
    except ImportError as error:
        package = f"langchain-{provider.split('_')[0]}"
        raise MissingTool(f"the provider {provider} needs a package of its own", f"{EXTRA} {package}") from error
    except Exception as error:  # each class has its own way to say that a key is missing
        raise UsageError(f"no access to {model} of {provider}: {_first_line(error)}", "see --api-key-env") from error


async def ask_provider(chat: Any, messages: Sequence[Any], tools: tuple[str, ...], config: dict[str, Any]) -> Any:
    """langchain's reply. Raises ProviderFailed."""
    try:
        calling = chat.bind_tools(declarations(tools)) if tools else chat
        return await calling.ainvoke(messages, config=config)
    except TimeoutError:
        raise
    except Exception as error:  # classes of packages that are not known here
        raise ProviderFailed(error) from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
