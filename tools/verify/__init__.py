"""`foundry verify` and `foundry profile`: one pair of files, one report, one receipt."""
