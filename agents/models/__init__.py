"""Chat models of a run: settings, choice among several, capabilities of an endpoint, cost estimate."""
