"""Rows say what should exist outside: comments, labels, pull requests, notifications. This package makes them, once.

One loop (`drain.py`) carries out every kind of effect, and one table (`retry_policy.py`) says what a refusal means. The
attempt is stored first. Where an earlier attempt may have worked, the kind looks for the result before it writes.
Replies to strangers are limited (`strangers.py`).
"""
