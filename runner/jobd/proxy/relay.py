"""The relay: a server on the loopback address through which a job's agent reaches its model.

It forwards each connection to a socket outside the sandbox, on which sshd listens for the service. The relay outlives
the service's connection: it holds new connections while the service is away, and aborts those that were open, so that
they do not look complete. It does not interpret the data.

Every process that reaches the loopback address can connect. The service answers only with the job's token.
"""

from __future__ import annotations

import os
import socket
from importlib import import_module

from ..files import Failure, JobPaths, read_json
from ..sandbox.child import close_all, list_descriptors
from ..sandbox.namespaces import hide_from_job
from .sockets import find_record

LOOPBACK, SEALED_PORT = "127.0.0.1", 8011
"""The port in a network namespace, where nothing else listens."""


class Relay:
    """A job's relay. It opens what it needs at once, because the sandbox hides it later."""

    def __init__(self, job: JobPaths, *, has_network: bool) -> None:
        """Raises `Failure` if the service has not requested a relay for this job."""
        try:
            self._folder = os.open(read_json(find_record(job))["folder"], os.O_PATH | os.O_DIRECTORY)
        except (KeyError, OSError):
            raise Failure("no_relay", "the relay to the service's gateway is not set up") from None
        # The sandbox hides our modules. And only stages with a relay need asyncio.
        self._serve = import_module(".forwarding", __package__).serve
        # In a job with its own network namespace, the port can be opened only in there.
        self._listener = listen(0) if has_network else None
        self.address = f"http://{LOOPBACK}:{self._listener.getsockname()[1] if self._listener else SEALED_PORT}"

    def start(self) -> None:
        """Run it in a process of its own, which ends with the processes around it. Raises `OSError`."""
        # A copy, because a session that is resumed needs the same port again.
        listener = self._listener.dup() if self._listener else listen(SEALED_PORT)
        if os.fork():
            listener.close()
            return
        try:
            hide_from_job()
            _close_others(listener.fileno(), self._folder)
            self._serve(listener, self._folder)
        finally:
            os._exit(0)


def listen(port: int) -> socket.socket:
    """Listen for agents; port 0 means any free port. Raises `OSError`."""
    listener = socket.create_server((LOOPBACK, port), backlog=256)
    # Accepted sockets inherit it; asyncio sets it only on sockets that it creates. Without it, the second part of an
    # answer waits until the agent's system has acknowledged the first: 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


def _close_others(*kept: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    close_all({*list_descriptors()} - {0, 1, 2, *kept})


def fill_in(text: str, relay: Relay | None) -> str:
    """Replace `{gateway}` with the relay's URL and `{relay}` with its host and port, if there is a relay."""
    if relay is None:
        return text
    return text.replace("{gateway}", relay.address).replace("{relay}", relay.address[len("http://") :])
