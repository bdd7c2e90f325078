"""Turns `ptq.toml` into plain values, and reports all problems in it at once.

Machines, repositories and profiles may change while the service runs.
"""
