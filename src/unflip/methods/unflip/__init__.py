"""unflip, the default method: an ensemble that scores every label, out of sample where inputs are features."""
