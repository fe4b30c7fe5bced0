"""Kernels that an author wrote, wrapped as the library's own: buffers, expressions, the printed step."""
