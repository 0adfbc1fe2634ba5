"""Experiments: grids of runs, executed on this machine or a cluster, and their results."""
