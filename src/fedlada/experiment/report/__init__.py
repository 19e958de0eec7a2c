"""The report on runs: a page of curves, tables and paired comparisons."""
