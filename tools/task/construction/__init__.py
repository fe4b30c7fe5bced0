"""Records a constructor's calls to torch, and replays them to make the model's tensors without its class."""
