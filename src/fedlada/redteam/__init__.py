"""Clients that fail or lie, to test a federation."""
