"""The state of one issue's conversation, and its rows. When rows are deleted."""
