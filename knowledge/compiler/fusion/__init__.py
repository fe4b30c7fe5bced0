"""Many kernels become fewer: values move from memory into registers."""
