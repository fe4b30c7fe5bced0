"""Child processes that can always be ended, what confines them, and the messages to them."""
