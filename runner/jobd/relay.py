"""The relay: what a job's agent speaks with in place of its model, on the loopback address.

It passes every connection on to a socket of the service's, which the service has sshd listen on outside of the cell. It
outlives that: while nobody is there it holds what is new, and what was under way when the service was cut off is broken
off, never ended as if all had been said. It refuses to know what passes through.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import socket
import struct
import tempfile
import termios
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .ended import not_ended
from .files import Failure, Job, read_json, write_file
from .namespaces import hide_from_job, list_descriptors

HOLD_S = 300.0
"""How long a new connection is held while the service is not there."""
LOOK_EVERY_S = 0.2
FLUSH_S = 30.0
"""How long the last words may take to reach an agent that reads slowly."""
CHUNK = 65_536
LOOPBACK, SEALED_PORT = "127.0.0.1", 8011
"""In a network of its own nothing else listens."""

FOLDERS = Path("/tmp")  # noqa: S108 - the path of a socket may have 107 bytes, and a workspace's may be as long
PREFIX = "ptq-"

ESTABLISHED = "01"
PLAIN, MAPPED = (
    "".join(f"{word:08X}" for word in struct.unpack(f"={len(address) // 4}I", address))
    for address in (socket.inet_aton(LOOPBACK), socket.inet_pton(socket.AF_INET6, f"::ffff:{LOOPBACK}"))
)
"""The address as the kernel's tables have it, and as a socket of IPv6 says it."""


def open_way(request: Mapping[str, Any]) -> dict[str, Any]:
    """The path for the service's next socket of a job, in a folder that only the account may enter.

    Raises `Failure` when the job's environment was cleaned.
    """
    job = Job(request)
    with not_ended(job):
        note = read_json(find_note(job))
        folder, turn = str(note.get("folder", "")), int(note.get("turn", 0)) + 1
        if not Path(folder).is_dir() or not folder:
            job.control.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=FOLDERS)
        write_file(find_note(job), json.dumps({"folder": folder, "turn": turn}))
    return {"path": f"{folder}/{turn:06}"}


def close_way(job: Job) -> None:
    """Remove the folder, if there is one."""
    folder = Path(str(read_json(find_note(job)).get("folder", "")))
    if folder.parent == FOLDERS and folder.name.startswith(PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def find_note(job: Job) -> Path:
    """Where the folder's name is written down; no job sees it."""
    return job.control / "relay.json"


class Relay:
    """A job's relay, before it runs: what it needs is opened where it still can be."""

    def __init__(self, job: Job, *, has_network: bool, is_sealed: bool) -> None:
        """Raises `Failure` where no service has asked for it."""
        try:
            self._folder = os.open(read_json(find_note(job))["folder"], os.O_PATH | os.O_DIRECTORY)
        except (KeyError, OSError):
            raise Failure("no_relay", "the way to the service's gateway is not there") from None
        self._is_sealed = is_sealed
        # Where the job has a network of its own, that is only there later.
        self._listener = _listen(0) if has_network else None
        self.address = f"http://{LOOPBACK}:{self._listener.getsockname()[1] if self._listener else SEALED_PORT}"

    def start(self) -> None:
        """Have it run in a process of its own, which ends with the ones around it. Raises `OSError`."""
        listener = self._listener or _listen(SEALED_PORT)
        if os.fork():
            listener.close()
            return
        try:
            hide_from_job()
            _close_others(listener.fileno(), self._folder)
            asyncio.run(serve(listener, self._folder, is_peer_here if self._is_sealed else None))
        finally:
            os._exit(0)


def _listen(port: int) -> socket.socket:
    listener = socket.create_server((LOOPBACK, port), backlog=256)
    listener.setblocking(False)
    return listener


def _close_others(*kept: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    for descriptor in {*list_descriptors()} - {0, 1, 2, *kept}:
        with suppress(OSError):
            os.close(descriptor)


async def serve(listener: socket.socket, folder: int, is_welcome: Callable[[int, int], bool] | None) -> None:
    """Pass on every connection that comes, for ever."""
    relay = _Connections(folder)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
        if is_welcome and not is_welcome(*ports):
            break_off(writer)
            return
        await relay.pass_on(reader, writer)

    server = await asyncio.start_server(handle, sock=listener)
    await asyncio.gather(server.serve_forever(), relay.keep_to_newest())


class _Connections:
    """What is under way, by the socket that it goes by."""

    def __init__(self, folder: int) -> None:
        self._folder = f"/proc/self/fd/{folder}"
        self._by_name: dict[str, set[asyncio.StreamWriter]] = {}

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hold a connection until the service is there, then pass on what both say. Ends it as the service does."""
        found = await self._find_service(time.monotonic() + HOLD_S)
        if not found:
            break_off(writer)
            return
        name, their_reader, their_writer = found
        mine = self._by_name.setdefault(name, set())
        mine.add(their_writer)
        ways = [asyncio.ensure_future(copy(reader, their_writer)), asyncio.ensure_future(copy(their_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if ways[1].done():
                await flush(writer)
        finally:
            mine.discard(their_writer)
            for way in ways:
                way.cancel()
            their_writer.transport.abort()
            break_off(writer)

    async def keep_to_newest(self) -> None:
        """Break off what goes by an older socket once there is a newer one: behind the older nobody is left."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            names = self._list_names()
            for name in [name for name in self._by_name if names and name != names[0]]:
                for writer in self._by_name.pop(name):
                    writer.transport.abort()

    async def _find_service(self, deadline: float) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter] | None:
        while time.monotonic() < deadline:
            for name in self._list_names():
                path = f"{self._folder}/{name}"
                try:
                    return (name, *await asyncio.open_unix_connection(path))
                except ConnectionRefusedError:
                    with suppress(OSError):  # Its service is gone, and comes back with another one.
                        Path(path).unlink()
                except OSError:
                    continue
            await asyncio.sleep(LOOK_EVERY_S)
        return None

    def _list_names(self) -> list[str]:
        """The service's sockets, the newest first."""
        with suppress(OSError):
            return sorted((path.name for path in Path(self._folder).iterdir()), reverse=True)
        return []


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until there is no more, or one side is broken."""
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()


async def flush(writer: asyncio.StreamWriter) -> None:
    """Wait until the other side has what was sent: to break off a connection loses what is still on its way."""
    writer.transport.set_write_buffer_limits(0)
    deadline = time.monotonic() + FLUSH_S
    with suppress(OSError):
        await asyncio.wait_for(writer.drain(), FLUSH_S)
        sent = writer.get_extra_info("socket").fileno()
        while struct.unpack("i", fcntl.ioctl(sent, termios.TIOCOUTQ, b"\0" * 4))[0]:
            await asyncio.sleep(0.005)
            if time.monotonic() > deadline:
                return


def break_off(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side cannot take it for an end that was meant (socket(7), SO_LINGER)."""
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def is_peer_here(peer_port: int, own_port: int) -> bool:
    """Whether the other end of a connection belongs to a process of our namespace: the loopback may be the machine's.

    proc(5), /proc/net/tcp
    """
    ends = [{f"{form}:{port:04X}" for form in (PLAIN, MAPPED)} for port in (peer_port, own_port)]
    tables = [path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    sockets = {
        f"socket:[{row[9]}]" for row in rows if row[1] in ends[0] and row[2] in ends[1] and row[3] == ESTABLISHED
    }
    return any(_has_one(process / "fd", sockets) for process in Path("/proc").iterdir() if process.name.isdigit())


def _has_one(descriptors: Path, wanted: Collection[str]) -> bool:
    with suppress(OSError):
        return any(str(path.readlink()) in wanted for path in descriptors.iterdir())
    return False


def fill_in(text: str, relay: Relay | None) -> str:
    """A text in which `{gateway}` stands for the relay's address and `{relay}` for its host and port, where it is."""
    if relay is None:
        return text
    return text.replace("{gateway}", relay.address).replace("{relay}", relay.address[len("http://") :])
