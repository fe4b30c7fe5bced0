"""One candidate measured, from the main process; free of torch."""
