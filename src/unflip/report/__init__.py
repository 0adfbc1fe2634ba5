"""Pages and figures about runs."""
