"""Messages between the processes of grading, typed: one module for each border."""
