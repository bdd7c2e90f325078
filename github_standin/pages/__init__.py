"""Pages with forms, so that a person can play GitHub in a browser."""
