"""The only way for other people's text into our comments and pages, and into an agent's prompt. Pure.

Text is bounded, redacted and rewritten here; no other package makes it safe.
"""
