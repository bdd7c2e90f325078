"""How a job without a network reaches the service's gateway: sockets, and the relay that passes bytes on."""
