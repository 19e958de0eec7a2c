"""Combining the replies of a round: exact means and robust rules."""
