"""Other people's text passes through here before it is in a comment, in a page's prose, or in an agent's prompt. Pure.

It is bounded, secrets are removed, and Markdown is rewritten.
"""
