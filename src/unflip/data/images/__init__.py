"""Images: which files, decoding, augmentation, and sources of batches."""
