"""`make hostile`: every hostile text goes through a running service, which has to stay awake meanwhile."""
