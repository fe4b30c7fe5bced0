"""What is known: the shared vocabulary, the experience store, playbook cards, the kernel library."""
