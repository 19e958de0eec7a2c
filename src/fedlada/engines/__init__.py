"""Engines that connect the two halves without a network."""
