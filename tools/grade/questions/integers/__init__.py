"""Integers that decide what is computed: how a model reads them, which others it takes, and which way its Python went.

Runs in the judge.
"""
