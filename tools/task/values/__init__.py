"""Capture of Python that reads values: symbols for what is read, masks for what is chosen, joined rounds of loops."""
