"""Viewing: the pictures and rows of a run's examples, for people to look at."""
