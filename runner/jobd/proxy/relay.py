"""The relay: what a job's agent speaks with in place of its model, on the loopback address.

It passes every connection on to a socket of the service's, which the service has sshd listen on outside of the cell. It
outlives that: while nobody is there it holds what is new, and what was under way when the service was cut off is broken
off, never ended as if all had been said. It refuses to know what passes through.

Every process that reaches the loopback address can connect. The service answers nobody without the job's token.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from importlib import import_module

from ..files import Failure, JobPaths, read_json
from ..sandbox.namespaces import hide_from_job, list_descriptors
from .sockets import find_note

LOOPBACK, SEALED_PORT = "127.0.0.1", 8011
"""In a network of its own nothing else listens."""


class Relay:
    """A job's relay, before it runs: what it needs is opened where it still can be."""

    def __init__(self, job: JobPaths, *, has_network: bool) -> None:
        """Raises `Failure` where no service has asked for it."""
        try:
            self._folder = os.open(read_json(find_note(job))["folder"], os.O_PATH | os.O_DIRECTORY)
        except (KeyError, OSError):
            raise Failure("no_relay", "the way to the service's gateway is not there") from None
        # Inside of the cell our modules are not there. They import what most stages do without.
        self._serve = import_module(".passing", __package__).serve
        # Where the job has a network of its own, that is only there later.
        self._listener = listen(0) if has_network else None
        self.address = f"http://{LOOPBACK}:{self._listener.getsockname()[1] if self._listener else SEALED_PORT}"

    def start(self) -> None:
        """Have it run in a process of its own, which ends with the ones around it. Raises `OSError`."""
        listener = self._listener or listen(SEALED_PORT)
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
    """Listen for agents, at any port where it is 0. Raises `OSError`."""
    listener = socket.create_server((LOOPBACK, port), backlog=256)
    # What is accepted has it from here, and asyncio sees to it only for sockets that it makes itself. Without it the
    # second piece of an answer waits until the agent's system confirms the first: 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


def _close_others(*kept: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    for descriptor in {*list_descriptors()} - {0, 1, 2, *kept}:
        with suppress(OSError):
            os.close(descriptor)


def fill_in(text: str, relay: Relay | None) -> str:
    """A text in which `{gateway}` stands for the relay's address and `{relay}` for its host and port, where it is."""
    if relay is None:
        return text
    return text.replace("{gateway}", relay.address).replace("{relay}", relay.address[len("http://") :])
