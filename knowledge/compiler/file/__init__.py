"""Writes the candidate's Python file from its template and texts."""
