"""Training: the training loop and everything around it."""
