"""A machine that sends too much waits; the rest of the service does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from asyncssh.constants import MSG_IGNORE
from asyncssh.packet import String

from bot.demo.loopback import find_free_port
from runner.model.machines import Machine
from runner.transport.hosts import MAX_CHANNELS, MAX_REFUSED, SshHost
from runner.transport.listening import Stream
from runner.transport.paced import BURST_S, MAX_UNSENT_BYTES, PIECE_BYTES, SHARE, PacedReading
from runner.transport.ssh_metrics import SSH_METRICS

FLOOD = 40_000
"""Packets of 40 bytes or so: some 0.8 s of work for whoever reads them."""


class Worker(asyncio.Protocol):
    """A connection on which each byte costs `byte_s` seconds of work; its clock is the sum of work and of rests."""

    def __init__(self, byte_s: float) -> None:
        self.byte_s = byte_s
        self.worked_s = 0.0
        self.rested_s = 0.0
        self.read = b""
        self.ended = False

    def data_received(self, data: bytes) -> None:
        assert len(data) <= PIECE_BYTES
        self.read += data
        self.worked_s += len(data) * self.byte_s

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


class Wire(asyncio.Transport):
    """A TCP connection as far as its reader sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = True
        self.unsent = 0
        self.pauses = 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_open = False
        self.pauses += 1

    def resume_reading(self) -> None:
        assert not self.is_open, "uvloop resumes only what was paused"
        self.is_open = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


def read_paced(worker: Worker) -> tuple[PacedReading, Wire]:
    wire = Wire()
    loop = asyncio.get_running_loop()
    reading = PacedReading(worker, "gpu-1", clock=lambda: loop.time() + worker.worked_s, work=lambda: worker.worked_s)
    reading.connection_made(wire)
    return reading, wire


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.005)


async def test_what_costs_little_is_handed_over_at_once() -> None:
    worker = Worker(byte_s=1e-9)
    reading, wire = read_paced(worker)
    reading.data_received(bytes(1_000_000))
    assert (len(worker.read), wire.pauses) == (1_000_000, 0)


async def test_what_costs_much_is_handed_over_in_order_and_within_the_share() -> None:
    worker = Worker(byte_s=BURST_S / 10_000)
    reading, wire = read_paced(worker)
    sent = bytes(range(256)) * 200
    begun = asyncio.get_running_loop().time()
    reading.data_received(sent)
    assert len(worker.read) < 20_000, "it rests with the first burst"
    assert not wire.is_open, "TCP makes the machine wait meanwhile"
    reading.data_received(b"later")
    await until(lambda: wire.is_open)
    assert worker.read == sent + b"later"
    passed = asyncio.get_running_loop().time() - begun + worker.worked_s
    assert worker.worked_s <= passed * SHARE + 2 * BURST_S


async def test_a_machine_that_reads_no_answers_is_not_read_either() -> None:
    worker = Worker(byte_s=0)
    reading, wire = read_paced(worker)
    wire.unsent = MAX_UNSENT_BYTES + 1
    reading.data_received(b"one more question")
    assert (worker.read, wire.is_open) == (b"", False)
    wire.unsent = 0
    await until(lambda: wire.is_open)
    assert worker.read == b"one more question"


async def test_what_ends_in_a_rest_is_over() -> None:
    worker = Worker(byte_s=BURST_S)
    reading, _ = read_paced(worker)
    reading.data_received(bytes(PIECE_BYTES * 2))
    reading.connection_lost(None)
    assert worker.ended
    await asyncio.sleep(BURST_S / SHARE)
    assert len(worker.read) == PIECE_BYTES


class Flooding:
    """An SSH server, in a thread of its own, that answers each command with a flood of packets and then with `done`.

    It and its client have the same key.
    """

    def __init__(self, folder: Path) -> None:
        self._key = asyncssh.generate_private_key("ssh-ed25519")
        self.port = find_free_port()
        (folder / "key").write_bytes(self._key.export_private_key())
        (folder / "known").write_bytes(f"[127.0.0.1]:{self.port} ".encode() + self._key.export_public_key())
        self.machine = Machine(
            "flooding",
            "/srv/ptq",
            kind="ssh",
            host="127.0.0.1",
            port=self.port,
            user="ptq",
            known_hosts_file=folder / "known",
            client_key_file=folder / "key",
        )

    async def listen(self, **options: Any) -> asyncssh.SSHAcceptor:
        """Serve in this loop."""
        authorized = asyncssh.import_authorized_keys(self._key.export_public_key().decode())
        return await asyncssh.listen(
            "127.0.0.1", self.port, server_host_keys=[self._key], authorized_client_keys=authorized, **options
        )

    def run(self, started: threading.Event, stop: threading.Event) -> None:
        async def answer(process: asyncssh.SSHServerProcess[bytes]) -> None:
            connection = process.channel.get_connection()
            for _ in range(FLOOD):
                connection.send_packet(MSG_IGNORE, String(b""))
            process.stdout.write(b"done\n")
            process.exit(0)

        async def serve() -> None:
            async with await self.listen(process_factory=answer, encoding=None):
                started.set()
                await asyncio.to_thread(stop.wait)

        asyncio.run(serve())


@pytest.mark.slow
async def test_a_flood_of_packets_makes_its_machine_rest_and_commands_still_end(tmp_path: Path) -> None:
    flooding = Flooding(tmp_path)
    started, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=flooding.run, args=(started, stop))
    thread.start()
    host = SshHost(flooding.machine)
    rests = SSH_METRICS.read_rests().get("flooding", 0)
    try:
        await asyncio.to_thread(started.wait)
        for _ in range(5):
            assert (await host.run(["anything"], timeout_s=60)).stdout == b"done\n"
            # Next to other work this process may get too little time to use up the machine's share.
            if SSH_METRICS.read_rests().get("flooding", 0) > rests + 5:
                break
        else:
            pytest.fail("a flood was read without a rest, five times")
    finally:
        await host.close()
        stop.set()
        await asyncio.to_thread(thread.join)


class Opening(asyncssh.SSHServer):
    """A machine that lets the service listen at any path, and can open connections to it."""

    def __init__(self, opened: asyncio.Queue[asyncssh.SSHServerConnection]) -> None:
        self._opened = opened

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._opened.put_nowait(conn)

    def unix_server_requested(self, listen_path: str) -> asyncssh.SSHListener:
        return asyncssh.SSHListener()


async def test_a_machine_that_opens_connections_and_closes_none_is_refused_more_and_then_disconnected(
    tmp_path: Path,
) -> None:
    flooding = Flooding(tmp_path)
    machines: asyncio.Queue[asyncssh.SSHServerConnection] = asyncio.Queue()
    served: list[Stream] = []

    async def accept(stream: Stream) -> None:
        """Its connection is handled at once, but the machine has not closed it by then."""
        served.append(stream)

    async def open_all(count: int) -> list[asyncssh.SSHWriter[bytes]]:
        opening = (machine.open_unix_connection("/x/1", encoding=None) for _ in range(count))
        opened = await asyncio.gather(*opening, return_exceptions=True)
        return [pair[1] for pair in opened if isinstance(pair, tuple)]

    host = SshHost(flooding.machine)
    async with asyncio.timeout(60), await flooding.listen(server_factory=lambda: Opening(machines)):
        listening = await host.listen("/x/1", accept)
        machine = machines.get_nowait()
        held = await open_all(MAX_CHANNELS + 10)
        assert (len(held), len(served), listening.is_alive) == (MAX_CHANNELS, MAX_CHANNELS, True)
        for writer in held[:20]:
            writer.close()
            await writer.wait_closed()
        held = held[20:] + await open_all(30)
        assert (len(held), listening.is_alive) == (MAX_CHANNELS, True), "places that are free again are taken"
        assert await open_all(MAX_REFUSED) == []
        await until(lambda: not listening.is_alive)
        await host.close()
