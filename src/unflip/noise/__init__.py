"""Noise: clean labels in, noisy labels out."""
