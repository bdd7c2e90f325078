"""The outside world: HTTP in, GitHub out, configuration, command line."""
