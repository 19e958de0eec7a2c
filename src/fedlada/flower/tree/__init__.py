"""Aggregation trees: leaves that collect for the server."""
