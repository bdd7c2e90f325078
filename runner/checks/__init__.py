"""What the service verifies itself: which scripts and tests run on base and change, and what their results mean.

Pure.
"""
