"""The experts (roles that propose steps), one file each; a new one is one more file."""
