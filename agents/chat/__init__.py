"""The brain with a chat model: requests, prompts in words, answers as proposals."""
