"""Grading: a folder for each process, and what is asked of a candidate."""
