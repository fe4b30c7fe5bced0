"""The code that touches the machine: tasks, capture, targets, workers, verification, audit, timing, profiles."""
