"""Shared knowledge: the vocabulary of records, the experience store, playbook cards, the kernel compiler."""
