"""Parts that the nodes share: the state, briefs, tools, users' orders, reasons to stop, the end of a run."""
