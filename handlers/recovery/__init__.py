"""This package asks GitHub for missed events.

It also stores when the service was running, and notices repositories that became private.
"""
