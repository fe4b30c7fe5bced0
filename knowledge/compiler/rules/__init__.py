"""One operator becomes one kernel."""
