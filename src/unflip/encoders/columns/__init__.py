"""Columns of a table: what a column is, what becomes of its cells, and how cells are read."""
