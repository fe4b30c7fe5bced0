"""The profiler ladder: evidence about a kernel on each rung, and the one cause that it names as the limit."""
