"""Statistics: pure functions on tensors, and small classes that hold their results."""
