"""Environments that people work in: takeover, release, and what people are told about them.

GitHub is asked again whether their holders still may.
"""
