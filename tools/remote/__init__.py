"""Workbenches in processes of their own, one for each GPU, and the messages to them: contents, never paths."""
