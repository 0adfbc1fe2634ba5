"""unflip, the default method: a cross-fitted ensemble that scores every label out of sample."""
