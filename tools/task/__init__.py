"""The user's task: read without running it, run in a worker, captured as an operator graph."""
