"""Texts about a run: its ending, its candidates, answers to a user's questions."""
