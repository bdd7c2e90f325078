"""Rows say what should exist on GitHub; this package makes it exist, once.

The attempt to write is stored first. Where an earlier attempt may have worked, it looks for the result before it
writes.
"""
