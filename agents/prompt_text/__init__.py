"""The prompts of chat models in words, each section within a budget of characters."""
