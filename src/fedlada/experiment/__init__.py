"""Experiments, from a TOML file to records on disk: configuration, runs, sweeps, results.

This package needs the ``experiment`` extra. In fedlada only the command line imports it.
"""
