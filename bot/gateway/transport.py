"""An asyncio transport over a stream from a machine. With it, aiohttp can serve the stream without a socket."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from runner.transport.listening import Stream
from runner.transport.paced import PIECE_BYTES, LoopShare

HIGH_WATER = 65_536
"""Bytes in the send buffer above which the protocol is asked to pause. This is asyncio's default."""

LAST_WORDS_S = 5.0


class StreamTransport(asyncio.Transport):
    """Passes a stream's data to a protocol, and sends what the protocol writes.

    The protocol's work on the data is limited to a `share`, because a body in chunks of one byte takes some 150 times
    as long as any other body.
    """

    def __init__(self, stream: Stream, protocol: asyncio.Protocol, share: LoopShare) -> None:
        super().__init__()
        self._stream = stream
        self._protocol = protocol
        self._share = share
        self._waiting = bytearray()
        self._has_news = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._is_closing = False
        self._is_paused = False

    async def run(self) -> None:
        """Serve until one side closes the connection, or until it breaks."""
        self._protocol.connection_made(self)
        reading = asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self.close())
        try:
            await self._send()
            # The client closes its side after it has read everything. An immediate abort would lose data in transit.
            await asyncio.wait([reading], timeout=LAST_WORDS_S)
        except OSError:  # The client is gone.
            pass
        finally:
            self._is_closing = True
            reading.cancel()
            with suppress(OSError):
                self._stream.abort()
            self._protocol.connection_lost(None)

    async def _read(self) -> None:
        with suppress(OSError, EOFError):
            while data := await self._stream.read():
                for start in range(0, len(data), PIECE_BYTES):
                    await self._may_read.wait()
                    await self._share.wait()
                    self._share.work(self._protocol.data_received, data[start : start + PIECE_BYTES])
                await asyncio.sleep(0)  # Reading data that has arrived already does not yield to other tasks.

    async def _send(self) -> None:
        """Send what the protocol writes until `close`, then signal the end of the data. Raises `OSError`."""
        while not self._is_closing or self._waiting:
            data, self._waiting = bytes(self._waiting), bytearray()
            if data:
                await self._stream.write(data)
            elif self._is_paused:
                self._is_paused = False
                self._protocol.resume_writing()
            else:
                self._has_news.clear()
                await self._has_news.wait()
        await self._stream.end()

    def write(self, data: Any) -> None:
        """See `asyncio.WriteTransport`."""
        if self._is_closing:
            return
        self._waiting += data
        self._has_news.set()
        if len(self._waiting) > HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return len(self._waiting)

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._may_read.set()

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return self._may_read.is_set()

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._is_closing

    def close(self) -> None:
        """Send the buffered data, then close."""
        self._is_closing = True
        self._has_news.set()

    def abort(self) -> None:
        """Discard the buffered data, and close immediately."""
        self._waiting.clear()
        with suppress(OSError):
            self._stream.abort()
        self.close()
