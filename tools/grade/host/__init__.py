"""The main process's side of grading: it asks judges and runners, and never imports torch."""
