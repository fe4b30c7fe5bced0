"""Views of a run: terminal, page, trace, words."""
