"""`ptq.toml` becomes plain values, and every problem in it is reported in one answer.

Machines, repositories and profiles may change while the service runs.
"""
