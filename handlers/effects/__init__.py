"""Rows say what should exist outside: comments, labels, pull requests, notifications.

This package creates each of them once. One loop (`drain.py`) carries out every kind of effect, and one table
(`retry_policy.py`) says what a refusal means. The attempt is stored first. If an earlier attempt may have succeeded,
`carry_out` first looks for its result on GitHub, and writes only what is missing. Replies to strangers are limited
(`strangers.py`).
"""
