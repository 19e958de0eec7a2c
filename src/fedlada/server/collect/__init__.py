"""Collecting the replies of a cohort: here or elsewhere, with the same bits."""
