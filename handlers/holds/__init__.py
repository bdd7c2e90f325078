"""Environments that people work in: takeover, release, and whether GitHub still lets their holders in."""
