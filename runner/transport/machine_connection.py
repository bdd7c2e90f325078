"""An SSH connection to a machine that may be an attacker's.

It adds limits to asyncssh, so that one machine cannot use up the service's time and memory: `PacedReading` for the data
that the machine sends, back-pressure for the data that is sent to it, and limits for key exchanges. asyncssh has no
public way to do this, so a few of its own methods are extended here.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import asyncssh
import structlog
from asyncssh.channel import SSHChannel

from runner.transport.paced import PacedReading

log = structlog.get_logger()

MAX_DEFERRED = 10_000
"""The most packets that wait for the end of a key exchange. With more, nothing is read from the machine, so that it
cannot cause further ones. Such packets are answers, of some 250 bytes each in asyncssh. Data waits in `make_room`."""
STALL = 2
"""A machine may leave data unread, or a key exchange open, for this many times the time that it may be silent."""
MAX_EXCHANGES = 40
EXCHANGES_PER_S = 4
"""The most key exchanges at once, and on average. OpenSSH begins one for each `RekeyLimit`: 1 GB or more by default.
Even with a limit of 16 MB, there are fewer at 50 MB/s."""
EXCHANGE_WORK_S = 0.005
"""CPU time that is counted for each key exchange, because it is spent in a task of asyncssh. group14 takes the most."""
MIN_PACKET_BYTES = 4096
"""A machine that takes less in a packet could turn one write into as many packets as it has bytes. RFC 4253, section
6.1, demands 32,768 bytes of every implementation."""


class MachineConnection(asyncssh.SSHClientConnection):
    """The connection. `reading` is the protocol for its transport. `options.waiter` tells when the login has ended."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: asyncssh.SSHClientConnectionOptions,
        machine: str,
        silence_s: float,
    ) -> None:
        super().__init__(loop, options, wait="auth")
        self.reading = PacedReading(self, machine, self._is_ready)
        self._machine = machine
        self._stall_s = silence_s * STALL
        self._stalls: dict[str, asyncio.TimerHandle] = {}
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._exchanges = 0.0
        self._exchanged = 0.0

    async def wait_for_room(self) -> None:
        """Wait until data can be sent at once, here and at all jump hosts, or until the connection ends."""
        while full := self._find_full():
            await full._has_room.wait()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: the machine does not take what was sent."""
        self._begin_stall("unread data")

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._end_stall("unread data")

    def send_newkeys(self, k: bytes, h: bytes) -> None:
        """Extended: the key exchange is over as far as sending is concerned."""
        super().send_newkeys(k, h)
        self._end_stall("key exchange")

    def _send_kexinit(self) -> None:
        """Extended: each key exchange begins here, from either side."""
        super()._send_kexinit()
        self._begin_stall("key exchange")
        self.reading.charge(EXCHANGE_WORK_S)
        now = self._loop.time()
        self._exchanges = max(0.0, self._exchanges - (now - self._exchanged) * EXCHANGES_PER_S) + 1
        self._exchanged = now
        if self._exchanges > MAX_EXCHANGES:
            self.give_up("ssh.machine_exchanges_too_many_keys")

    def _finish_recv_packet(
        self, pkttype: int, seq: int, _task: asyncio.Task[Any] | None = None, is_async: bool = False
    ) -> None:
        """Changed: data that came after a packet that a task has processed is also processed within the share."""
        super()._finish_recv_packet(pkttype, seq)
        if is_async:
            self.reading.go_on()

    def _cleanup(self, exc: Exception | None) -> None:
        """Extended: callers that wait for room stop waiting, and find the connection closed."""
        for stall in self._stalls.values():
            stall.cancel()
        self._stalls.clear()
        self._has_room.set()
        super()._cleanup(exc)

    def _is_ready(self) -> bool:
        """Whether received data is processed at once.

        While a task processes a packet, asyncssh replaces its method `_recv_handler` with a function.
        """
        return inspect.ismethod(self._recv_handler) and len(self._deferred_packets) <= MAX_DEFERRED

    def _find_full(self) -> MachineConnection | None:
        if not self._has_room.is_set():
            return self
        return self._tunnel._find_full() if isinstance(self._tunnel, MachineConnection) else None

    def _begin_stall(self, what: str) -> None:
        if what not in self._stalls:
            self._stalls[what] = self._loop.call_later(self._stall_s, self.give_up, "ssh.machine_stalls", what)
        self._has_room.clear()

    def _end_stall(self, what: str) -> None:
        if stall := self._stalls.pop(what, None):
            stall.cancel()
        if not self._stalls:
            self._has_room.set()

    def give_up(self, event: str, what: str = "") -> None:
        """Close the connection, and log why."""
        log.warning(event, machine=self._machine, **({"waits_for": what} if what else {}))
        self.abort()


async def make_room(channel: SSHChannel[bytes]) -> None:
    """Wait until a channel to a machine may be written to. Raises `OSError` if its packets would be too small."""
    connection: MachineConnection = channel.get_extra_info("connection")
    if channel._send_state == "open" and channel._send_pktsize < MIN_PACKET_BYTES:
        connection.give_up("ssh.machine_takes_too_small_packets")
        raise ConnectionResetError("the machine takes only small packets")
    await connection.wait_for_room()
