"""Report: what people look at."""
