"""Environments that people work in: takeover, release, and asking GitHub again whether their holders still may."""
