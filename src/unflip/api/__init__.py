"""Tasks: what a person asks for, one file each, callable from Python and from the command line."""
