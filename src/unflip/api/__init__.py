"""The commands as Python functions, one file each."""
