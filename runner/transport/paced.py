"""Limits how much of the event loop's time one machine's connection, or one job's requests, can use: at most a quarter.

asyncssh takes about 20 µs for a packet of any size. So a machine under an attacker's control could keep the event loop
busy for seconds with one megabyte. Received data is processed in small pieces, and their time is measured. When a
machine has used up its share, reading pauses, and TCP makes the machine wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import structlog

from runner.transport.ssh_metrics import SSH_METRICS

log = structlog.get_logger()

SHARE = 0.25
"""One connection's share of the event loop's time. It allows more than 50 MB/s of packets of the usual size."""
BURST_S = 0.02
"""How much processing time a connection may use in advance."""
PIECE_BYTES = 4096
MAX_UNSENT_BYTES = 8_000_000
"""Reading pauses while more bytes are unsent. A machine could cause answers without reading them."""
MANY_RESTS = 250
"""After so many pauses, about ten seconds, the log reports the machine once."""


REST_S = BURST_S / 2 / SHARE
"""How many seconds to wait once the share is used up. Meanwhile, half of the burst is paid back, so new pieces fit."""


class LoopShare:
    """Measures work, and says when it has used up its share. `clock` is the loop's time, `work` is CPU time."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, work: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._work = work
        self._debt_s = 0.0
        self._seen = clock()

    @property
    def is_used_up(self) -> bool:
        """Whether no more work may be done until `pay_back`."""
        return self._debt_s >= BURST_S

    def pay_back(self) -> None:
        """Count the time that has passed."""
        now = self._clock()
        self._debt_s = max(0.0, self._debt_s - (now - self._seen) * SHARE)
        self._seen = now

    async def wait(self) -> None:
        """Wait until more work may be done."""
        self.pay_back()
        while self.is_used_up:
            await asyncio.sleep(REST_S)
            self.pay_back()

    def work(self, step: Callable[[bytes], object], piece: bytes) -> None:
        """Process a piece."""
        begun = self._work()
        step(piece)
        self.charge(self._work() - begun)

    def charge(self, work_s: float) -> None:
        """Count work that was done elsewhere."""
        self._debt_s += work_s


class PacedReading(asyncio.Protocol):
    """A protocol between a TCP connection, or a jump host's channel, and its SSH connection.

    `is_ready` says whether the reader processes data at once. If the reader keeps data for later, it gets nothing more
    until it calls `go_on`. Otherwise it would process all of the data in one step, outside of its share. See
    `LoopShare` for `clock` and `work`.
    """

    def __init__(
        self,
        reader: asyncio.Protocol,
        machine: str,
        is_ready: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        work: Callable[[], float] = time.thread_time,
    ) -> None:
        self._reader = reader
        self._machine = machine
        self._is_ready = is_ready
        self._share = LoopShare(clock, work)
        self._pending = bytearray()
        self._is_kept = False
        self._rests = 0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass it on."""
        self._transport = cast(asyncio.Transport, transport)
        self._reader.connection_made(transport)

    def session_started(self) -> None:
        """A jump host's channel says that it is open. There is nothing to do."""

    def data_received(self, data: bytes, datatype: object = None) -> None:
        """Process data in pieces: now as far as the share allows, and the rest later."""
        self._pending += data
        if self._timer is None:
            self._hand_over()

    def go_on(self) -> None:
        """Make the reader process the data that it has kept, and then the data that has come since."""
        self._is_kept = True
        if self._timer is None:
            self._hand_over()

    def charge(self, work_s: float) -> None:
        """Count work that the reader has done elsewhere."""
        self._share.charge(work_s)

    def eof_received(self) -> bool | None:
        """Pass it on. It cannot overtake data, because a paused transport does not read the end either."""
        return self._reader.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on, and drop data that was not processed."""
        if self._timer:
            self._timer.cancel()
        self._pending.clear()
        self._is_kept = False
        self._reader.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._reader.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._reader.resume_writing()

    def _hand_over(self) -> None:
        self._share.pay_back()
        while self._has_work() and self._is_ready() and not self._share.is_used_up and not self._is_unread():
            size = 0 if self._is_kept else PIECE_BYTES
            self._is_kept = False
            piece = bytes(self._pending[:size])
            del self._pending[:size]
            self._share.work(self._reader.data_received, piece)
        if self._has_work() or self._share.is_used_up:
            self._rest()

    def _has_work(self) -> bool:
        return self._is_kept or bool(self._pending)

    def _rest(self) -> None:
        self._rests += 1
        SSH_METRICS.rests[self._machine] += 1
        if self._rests == MANY_RESTS:
            log.warning("ssh.machine_sends_too_much", machine=self._machine)
        self._pause()
        self._timer = asyncio.get_running_loop().call_later(REST_S, self._go_on)

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
