"""Simplifies and prepares each kernel by itself after fusion."""
