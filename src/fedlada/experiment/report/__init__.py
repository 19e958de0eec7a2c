"""Runs as a page of curves, tables and paired comparisons."""
