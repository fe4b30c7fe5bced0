"""Definitions of correct and fast: distributions, tolerances, statistics. Starts no process."""
