"""unflip, our own method and the default: a cross-fitted ensemble that scores every label out of sample."""
