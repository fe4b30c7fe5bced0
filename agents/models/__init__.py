"""Which models think for whom: settings, choice among several, what an endpoint can do, what a run may cost."""
