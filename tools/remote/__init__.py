"""Workbenches in processes of their own, one a GPU, and the messages to them: contents, never paths."""
