"""Images: files, decoding, augmentation, and sources of batches."""
