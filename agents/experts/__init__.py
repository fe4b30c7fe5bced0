"""The experts, one file each; a fifth is one more file."""
