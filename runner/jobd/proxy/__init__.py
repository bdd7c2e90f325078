"""The route from a job without a network to the service's gateway: sockets, and the relay that forwards bytes."""
