"""The review page: a local web page on which people check doubtful labels."""
