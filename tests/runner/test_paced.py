"""A machine that sends too much waits; the rest of the service does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from asyncssh.connection import SSHConnection
from asyncssh.constants import MSG_IGNORE
from asyncssh.packet import String

from bot.demo.loopback import find_free_port
from runner.model.machines import Machine
from runner.transport.host_errors import Unreachable
from runner.transport.hosts import MAX_CHANNELS, MAX_REFUSED, SshHost
from runner.transport.listening import CHUNK, Stream
from runner.transport.machine_connection import MAX_EXCHANGES
from runner.transport.paced import BURST_S, MAX_UNSENT_BYTES, PIECE_BYTES, SHARE, PacedReading
from runner.transport.ssh_metrics import SSH_METRICS

ROUNDS = 10
FLOOD = 40_000
"""Packets of 40 bytes or so: some 0.8 s of work for whoever reads them."""


class Worker(asyncio.Protocol):
    """A connection on which each byte costs `byte_s` seconds of work; its clock is the sum of work and of rests."""

    def __init__(self, byte_s: float) -> None:
        self.byte_s = byte_s
        self.is_ready = True
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
    reading = PacedReading(
        worker,
        "gpu-1",
        lambda: worker.is_ready,
        clock=lambda: loop.time() + worker.worked_s,
        work=lambda: worker.worked_s,
    )
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


async def test_a_reader_that_keeps_what_it_gets_for_later_gets_one_piece_until_it_goes_on() -> None:
    worker = Worker(byte_s=1e-9)
    reading, wire = read_paced(worker)
    worker.is_ready = False
    reading.data_received(bytes(1_000_000))
    assert (worker.read, wire.is_open) == (b"", False)
    worker.is_ready = True
    reading.go_on()
    await until(lambda: wire.is_open)
    assert len(worker.read) == 1_000_000


async def test_work_that_passes_elsewhere_is_counted() -> None:
    worker = Worker(byte_s=0)
    reading, wire = read_paced(worker)
    reading.charge(2 * BURST_S)
    reading.data_received(b"x")
    assert (worker.read, wire.is_open) == (b"", False)
    await until(lambda: wire.is_open)
    assert worker.read == b"x"


def begin_key_exchange(connection: SSHConnection) -> None:
    connection._send_kexinit()
    connection._kexinit_sent = True


@contextmanager
def sending_at_once(connection: SSHConnection) -> Iterator[None]:
    """What is sent meanwhile is in one piece."""
    sent: list[bytes] = []
    send, connection._send = connection._send, sent.append  # type: ignore[method-assign, assignment]
    yield
    connection._send = send  # type: ignore[method-assign]
    send(b"".join(sent))


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

    def run(self, started: threading.Event, stop: threading.Event, exchange: bool) -> None:
        async def answer(process: asyncssh.SSHServerProcess[bytes]) -> None:
            connection = process.channel.get_connection()
            for _ in range(ROUNDS):
                with sending_at_once(connection):
                    if exchange:
                        begin_key_exchange(connection)
                    for _ in range(FLOOD // ROUNDS):
                        connection.send_packet(MSG_IGNORE, String(b""))
                while not connection._kex_complete:
                    await asyncio.sleep(0.001)
            process.stdout.write(b"done\n")
            process.exit(0)

        async def serve() -> None:
            async with await self.listen(process_factory=answer, encoding=None):
                started.set()
                await asyncio.to_thread(stop.wait)

        asyncio.run(serve())


@pytest.mark.slow
@pytest.mark.parametrize("exchange", [False, True], ids=["alone", "behind-a-key-exchange"])
async def test_a_flood_of_packets_makes_its_machine_rest_and_commands_still_end(tmp_path: Path, exchange: bool) -> None:
    flooding = Flooding(tmp_path)
    started, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=flooding.run, args=(started, stop, exchange))
    thread.start()
    host = SshHost(flooding.machine)
    rests = SSH_METRICS.rests["flooding"]
    try:
        await asyncio.to_thread(started.wait)
        for _ in range(5):
            assert (await host.run(["anything"], timeout_s=60)).stdout == b"done\n"
            # Next to other work this process may get too little time to use up the machine's share.
            if SSH_METRICS.rests["flooding"] > rests + 5:
                break
        else:
            pytest.fail("a flood was read without a rest, five times")
    finally:
        await host.close()
        stop.set()
        await asyncio.to_thread(thread.join)


@pytest.mark.slow
async def test_a_machine_that_exchanges_keys_all_the_time_is_disconnected(tmp_path: Path) -> None:
    flooding = Flooding(tmp_path)
    begun = 0

    async def answer(process: asyncssh.SSHServerProcess[bytes]) -> None:
        nonlocal begun
        connection = process.channel.get_connection()
        while begun < 10 * MAX_EXCHANGES:
            begin_key_exchange(connection)
            begun += 1
            while not connection._kex_complete:
                await asyncio.sleep(0)
        process.exit(0)

    host = SshHost(flooding.machine)
    async with await flooding.listen(process_factory=answer, encoding=None):
        with pytest.raises(Unreachable):
            await host.run(["anything"])
        await host.close()
    assert MAX_EXCHANGES <= begun < 2 * MAX_EXCHANGES


async def test_key_exchanges_in_the_middle_of_a_command_lose_nothing(tmp_path: Path) -> None:
    flooding = Flooding(tmp_path)
    much = bytes(range(256)) * 12_000

    async def echo(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(await process.stdin.read())
        process.exit(0)

    host = SshHost(flooding.machine)
    async with await flooding.listen(process_factory=echo, encoding=None, rekey_bytes=300_000):
        assert (await host.run(["cat"], stdin=much)).stdout == much
        await host.close()


class Opening(asyncssh.SSHServer):
    """A machine that lets the service listen at any path, and can open connections to it."""

    def __init__(self, opened: asyncio.Queue[asyncssh.SSHServerConnection]) -> None:
        self._opened = opened

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._opened.put_nowait(conn)

    def unix_server_requested(self, listen_path: str) -> asyncssh.SSHListener:
        return asyncssh.SSHListener()


@pytest.mark.slow
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


async def write_to(
    machine: Machine, connections: asyncio.Queue[asyncssh.SSHServerConnection], hinder: Hinder, **channel: int
) -> int:
    """How many bytes the service sends to a machine that opens a connection with a huge window and then hinders it.

    It sends until it gets an error.
    """
    accepted = 0
    hindered, ended = asyncio.Event(), asyncio.Event()

    async def accept(stream: Stream) -> None:
        nonlocal accepted
        await hindered.wait()
        with suppress(OSError):
            while accepted < 8 * MAX_UNSENT_BYTES:
                await stream.write(bytes(CHUNK))
                accepted += CHUNK
        ended.set()

    async def stay_alive(connection: asyncssh.SSHServerConnection) -> None:
        """An answer to nothing, so that the machine does not count as silent."""
        while not connection.is_closed():
            connection.send_packet(MSG_IGNORE, String(b""))
            await asyncio.sleep(0.2)

    host = SshHost(machine, silence_s=1.0)
    listening = await host.listen("/x/1", accept)
    connection = connections.get_nowait()
    await connection.open_unix_connection("/x/1", encoding=None, window=2**31, **channel)
    hinder(connection)
    hindered.set()
    life = asyncio.create_task(stay_alive(connection))
    await ended.wait()
    assert not listening.is_alive
    life.cancel()
    connection.abort()
    await host.close()
    return accepted


Hinder = Callable[[asyncssh.SSHServerConnection], None]


def read_nothing(connection: asyncssh.SSHServerConnection) -> None:
    assert connection._transport
    connection._transport.pause_reading()


def end_no_key_exchange(connection: asyncssh.SSHServerConnection) -> None:
    begin_key_exchange(connection)
    connection.data_received = lambda data, datatype=None: None  # type: ignore[method-assign]


@pytest.mark.parametrize("hinder", [read_nothing, end_no_key_exchange])
async def test_a_machine_that_takes_nothing_is_sent_little_and_then_disconnected(
    tmp_path: Path, hinder: Hinder
) -> None:
    flooding = Flooding(tmp_path)
    connections: asyncio.Queue[asyncssh.SSHServerConnection] = asyncio.Queue()
    async with asyncio.timeout(60), await flooding.listen(server_factory=lambda: Opening(connections)):
        # The kernel's buffers take some megabytes.
        assert await write_to(flooding.machine, connections, hinder) < 2 * MAX_UNSENT_BYTES


async def test_a_machine_that_takes_a_few_bytes_at_a_time_is_disconnected(tmp_path: Path) -> None:
    flooding = Flooding(tmp_path)
    connections: asyncio.Queue[asyncssh.SSHServerConnection] = asyncio.Queue()
    async with asyncio.timeout(60), await flooding.listen(server_factory=lambda: Opening(connections)):
        assert await write_to(flooding.machine, connections, lambda _: None, max_pktsize=1) == 0


async def test_a_machine_sends_little_on_a_connection_that_nobody_reads(tmp_path: Path) -> None:
    flooding = Flooding(tmp_path)
    connections: asyncio.Queue[asyncssh.SSHServerConnection] = asyncio.Queue()

    async def accept(_: Stream) -> None:
        """Read nothing."""

    host = SshHost(flooding.machine)
    async with asyncio.timeout(60), await flooding.listen(server_factory=lambda: Opening(connections)):
        await host.listen("/x/1", accept)
        connection = connections.get_nowait()
        _, writer = await connection.open_unix_connection("/x/1", encoding=None)
        writer.write(bytes(2**20))
        for _ in range(5):  # Each goes there and back behind the data, and so behind what the data causes.
            await connection.open_unix_connection("/x/1", encoding=None)
        assert writer.channel.get_write_buffer_size() > 2**20 - 2**17
        await host.close()
