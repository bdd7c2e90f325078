"""Environments that people work in: takeover, release, and what people are told about them.

The service regularly asks GitHub whether the holder still has the right.
"""
