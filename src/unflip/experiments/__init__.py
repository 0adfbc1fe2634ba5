"""Experiments: a grid of runs, carried out here or on a cluster, and what came out of it."""
