"""What people are shown of a run: live, at its end, as a trace, as answers to questions."""
