"""From a question in a TOML file to records on disk: configuration, runs, sweeps, results.

Needs the ``experiment`` extra; nothing else in fedlada imports this package but the command line.
"""
