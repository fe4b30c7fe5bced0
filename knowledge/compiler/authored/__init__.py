"""Wraps an author's kernel like the compiler's own: buffers, expressions, the printed step."""
