"""Detached stages: each starts at most once, writes a log, and leaves one result."""
