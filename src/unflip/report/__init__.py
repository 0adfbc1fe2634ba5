"""Report: pages, tables and figures for people to read."""
