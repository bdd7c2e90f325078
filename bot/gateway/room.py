"""The memory for requests and answers that the gateway holds: one budget for all jobs, with a part for each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

MAX_HELD = 128 * 1024 * 1024
"""Bytes that are held for all jobs together."""

ALWAYS = 64 * 1024
"""Bytes of one request, or of a line of its answer, that are held however little room there is."""

WAIT_S = 15.0
"""How long a request waits for room."""


class MemoryFull(Exception):  # noqa: N818 - a state
    """There was no room for a request for `WAIT_S` seconds."""


class Room:
    """Counts the bytes that are held for each owner.

    An owner may hold as much as stays free beside it. So one alone gets half of all, and leaves as much to the others.
    """

    def __init__(self, size: int = MAX_HELD, wait_s: float = WAIT_S) -> None:
        self._size = size
        self._wait_s = wait_s
        self._held: Counter[Hashable] = Counter()
        self._freed = asyncio.Event()

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._held.total()

    @contextmanager
    def hold(self, owner: Hashable) -> Iterator[HeldBytes]:
        """What one request holds, nothing at first. At the end it is given back."""
        held = HeldBytes(self, owner)
        try:
            yield held
        finally:
            held.drop()

    def try_change(self, owner: Hashable, before: int, after: int) -> bool:
        """Let one of the owner's requests hold `after` bytes in place of `before`, if it may."""
        mine, free = self._held[owner] + after - before, self._size - self.held - after + before
        if after > max(before, ALWAYS) and mine > free:
            return False
        self._held[owner] = mine
        if not mine:
            del self._held[owner]
        if after < before:
            self._freed.set()
            self._freed = asyncio.Event()
        return True

    async def change(self, owner: Hashable, before: int, after: int) -> None:
        """The same, once there is room. Raises `MemoryFull`."""
        if self.try_change(owner, before, after):  # Nearly always; a timer would cost more than the rest.
            return
        try:
            async with asyncio.timeout(self._wait_s):
                while not self.try_change(owner, before, after):
                    await self._freed.wait()
        except TimeoutError:
            raise MemoryFull from None


class HeldBytes:
    """Bytes that are held for one request. `Room.hold` makes one."""

    def __init__(self, room: Room, owner: Hashable) -> None:
        self._room = room
        self._owner = owner
        self._size = 0
        self.content = b""

    async def grow(self, more: int) -> None:
        """Hold so many bytes more, once there is room. Raises `MemoryFull`."""
        await self._room.change(self._owner, self._size, self._size + more)
        self._size += more

    def resize(self, size: int) -> bool:
        """Hold so many bytes from now on. If there is no room for that, nothing changes, and this is False."""
        if not self._room.try_change(self._owner, self._size, size):
            return False
        self._size = size
        return True

    def replace(self, content: bytes) -> None:
        """Hold this in place of what was held."""
        self.content = content
        self.resize(len(content))  # What is written again is about as long, so there may be no room for the rest of it.

    def take(self) -> bytes:
        """The content, to which nothing else refers any more. It counts until `drop`."""
        content, self.content = self.content, b""
        return content

    def drop(self) -> None:
        """Hold nothing any more."""
        self.content = b""
        self.resize(0)
