"""Foundry's tools for coding agents, over the Model Context Protocol."""
