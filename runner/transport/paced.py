"""Reads a machine's connection at a bounded cost: one machine takes at most a quarter of the event loop's time.

A packet costs asyncssh about 20 µs, however small it is. A machine that somebody has taken over can therefore send a
megabyte that keeps the event loop busy for seconds. What a machine sends is handled in small pieces, the time that
they take is measured, and reading rests once a machine has used up its share. TCP then makes the machine wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import structlog

from runner.transport.ssh_metrics import TRAFFIC

log = structlog.get_logger()

SHARE = 0.25
"""Of the event loop's time, for one connection. Packets of usual size come at more than 50 MB/s within it."""
BURST_S = 0.02
"""How much work a connection may have done ahead of its share."""
PIECE_BYTES = 4096
MAX_UNSENT_BYTES = 8_000_000
"""A machine that makes us answer, and does not read the answers, is not read any further."""
MANY_RESTS = 250
"""After about ten seconds of rest the log says once that this machine keeps us busy."""


class PacedReading(asyncio.Protocol):
    """Stands between a TCP connection and the SSH connection on it. `clock` is the loop's time, `work` our CPU's."""

    def __init__(
        self,
        reader: asyncio.Protocol,
        machine: str,
        clock: Callable[[], float] = time.monotonic,
        work: Callable[[], float] = time.thread_time,
    ) -> None:
        self._reader = reader
        self._machine = machine
        self._clock = clock
        self._work = work
        self._pending = bytearray()
        self._debt_s = 0.0
        self._seen = clock()
        self._rests = 0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass it on."""
        self._transport = cast(asyncio.Transport, transport)
        self._reader.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Hand it over in pieces, now as far as the share allows and the rest later."""
        self._pending += data
        if self._timer is None:
            self._hand_over()

    def eof_received(self) -> bool | None:
        """Pass it on. It cannot overtake data: a transport that rests reads no end either."""
        return self._reader.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on, and forget what the machine sent but had no share for."""
        if self._timer:
            self._timer.cancel()
        self._pending.clear()
        self._reader.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._reader.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._reader.resume_writing()

    def _hand_over(self) -> None:
        now = self._clock()
        self._debt_s = max(0.0, self._debt_s - (now - self._seen) * SHARE)
        self._seen = now
        while self._pending and self._debt_s < BURST_S and not self._is_unread():
            piece = bytes(self._pending[:PIECE_BYTES])
            del self._pending[:PIECE_BYTES]
            begun = self._work()
            self._reader.data_received(piece)
            self._debt_s += self._work() - begun
        if self._pending or self._debt_s >= BURST_S:
            self._rest()

    def _rest(self) -> None:
        self._rests += 1
        TRAFFIC.count_rest(self._machine)
        if self._rests == MANY_RESTS:
            log.warning("ssh.machine_sends_too_much", machine=self._machine)
        self._pause()
        # Half of the burst is paid back, so that the next pieces find room.
        self._timer = asyncio.get_running_loop().call_later(BURST_S / 2 / SHARE, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self._hand_over()
        if self._timer is None and self._transport and not self._transport.is_closing():
            self._transport.resume_reading()

    def _pause(self) -> None:
        if self._transport and not self._transport.is_closing():
            self._transport.pause_reading()

    def _is_unread(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES


class PacedRoute:
    """A way to a host without a jump host before it, for `asyncssh.connect(tunnel=...)`."""

    def __init__(self, machine: str) -> None:
        self._machine = machine

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.Protocol]:
        """Connect by TCP. Raises `OSError`."""
        reader = factory()
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: PacedReading(reader, self._machine), host, port
        )
        return transport, reader
