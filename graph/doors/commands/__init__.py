"""The families of commands: arguments in, exit code out."""
