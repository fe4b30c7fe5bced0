"""The untrusted process: it holds one model, and all its answers are data."""
