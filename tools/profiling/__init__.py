"""The profiler ladder: what was seen of a kernel on each rung, and the one cause that it names."""
