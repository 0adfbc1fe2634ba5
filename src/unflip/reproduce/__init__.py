"""Reproduce the paper: grids of runs, on this machine or a cluster, and its tables and figures from their results."""
