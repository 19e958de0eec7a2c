"""The configuration of an experiment, read from its TOML file."""
