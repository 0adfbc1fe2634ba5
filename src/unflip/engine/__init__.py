"""Engine: the one training loop, and all that a run needs around it, from its data to its results."""
