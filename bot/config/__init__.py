"""`ptq.toml` becomes plain values, and every problem in it is reported in one answer.

Machines and repositories may change while the service runs.
"""
