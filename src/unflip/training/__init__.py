"""Training: the only loop, and what surrounds it."""
