"""Where everything of a demo listens: on this host alone."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import suppress
from itertools import chain

ADDRESS = "127.0.0.1"

PORTS = range(20_000, 32_000)
"""Below what Linux gives to outgoing connections (ip(7), ip_local_port_range), and what IANA leaves to them."""


def find_free_port() -> int:
    """A port that nobody listens on, for what must know its own address before it starts.

    It is none that the system gives to whoever asks for any, so that who stops finds it free again. Raises `OSError`
    where all are taken.
    """
    first = random.SystemRandom().randrange(len(PORTS))
    for port in chain(PORTS[first:], PORTS[:first]):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((ADDRESS, port))
            return port
    raise OSError(errno.EADDRINUSE, "no port of this host is free")
