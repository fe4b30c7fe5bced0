"""`foundry verify`: one pair of files, one report, one receipt."""
