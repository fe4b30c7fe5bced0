"""Foundry turns a slow PyTorch module into a fast, proven kernel."""

__version__ = "0.1.0"
