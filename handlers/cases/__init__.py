"""The state of one issue's conversation, its rows, and the rules by which old rows are deleted."""
