"""Logs, metrics and the operator's notifications. Secrets are removed from all of them."""
