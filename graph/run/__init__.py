"""A run on disk, what was asked of it, what it may spend, and the services that its nodes work with."""
