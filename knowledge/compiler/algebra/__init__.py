"""Exact rewrites of the operator graph: less work for the same function in real arithmetic."""
