"""Statistics: pure functions on tensors, and the small things that remember their results."""
