"""Rows say what should exist on GitHub; this package makes it exist, once, within the limits of writing.

The attempt is committed first. Where an earlier attempt may have worked, it looks for the result before it writes.
"""
