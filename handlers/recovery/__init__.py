"""Events that GitHub could not deliver, found by asking; and how long the service was away."""
