"""Labels: where they live, and which of them to change."""
