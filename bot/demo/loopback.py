"""The address and the ports on which all parts of a demo listen. Only this host can reach them."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import suppress
from itertools import chain

ADDRESS = "127.0.0.1"

PORTS = range(20_000, 32_000)
"""Ports that are lower than the ranges for outgoing connections of Linux (ip(7), `ip_local_port_range`) and IANA."""


def find_free_port() -> int:
    """A free port, for a server that must know its address before it starts.

    The system does not use it for outgoing connections, so a server finds its port free after a restart. Raises
    `OSError` if all ports are in use.
    """
    first = random.SystemRandom().randrange(len(PORTS))
    for port in chain(PORTS[first:], PORTS[:first]):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((ADDRESS, port))
            return port
    raise OSError(errno.EADDRINUSE, "no port of this host is free")
