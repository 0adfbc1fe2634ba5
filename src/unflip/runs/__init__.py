"""Runs: the run folder, and everything that is read from it or written to it."""
