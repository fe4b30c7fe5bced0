"""The brain with a chat model: requests, answers as proposals, tool calls."""
