"""The review page: a local web page on which people go through doubtful labels."""
