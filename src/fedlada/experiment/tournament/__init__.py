"""Tournaments: optimizers with equal tries, over problems and seeds."""
