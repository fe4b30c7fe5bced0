"""The trace of a run, searched, followed, with its prompts, and in other tools' form."""
