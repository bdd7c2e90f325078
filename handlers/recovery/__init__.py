"""Events that GitHub could not deliver, found by asking; how long the service was away; and repositories that became
private."""
