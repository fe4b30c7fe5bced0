"""The CPU target: builds with g++, describes and measures the processor, samples what runs, names what limits it."""
