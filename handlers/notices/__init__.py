"""What the operator must be told."""
