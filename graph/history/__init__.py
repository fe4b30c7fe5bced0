"""Runs after the fact: forks, cuts at a moment, replays and comparisons."""
