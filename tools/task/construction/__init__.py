"""How a model comes to its tensors: its constructor's calls to torch recorded, and replayed without its class."""
