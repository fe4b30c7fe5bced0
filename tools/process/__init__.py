"""Child processes that can always be ended, their confinement, and the messages to them."""
