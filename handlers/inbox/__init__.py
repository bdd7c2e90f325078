"""Deliveries from GitHub: stored before they are acknowledged, then handled in order for each issue.

Only a cancel overtakes the others.
"""
