"""The memory budget of the gateway for requests and answers. All jobs share it, and each has a limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

MAX_HELD = 128 * 1024 * 1024
"""The most bytes that all jobs together can hold."""

ALWAYS = 64 * 1024
"""Bytes of one request, or of a line of its answer, that can be held even if there is no room."""

WAIT_S = 15.0
"""Seconds that a request waits for room."""


class MemoryFull(Exception):  # noqa: N818 - a state
    """There was no room for a request for `WAIT_S` seconds."""


class Room:
    """Counts the bytes that each owner holds.

    An owner can hold at most as many bytes as then remain free. So a single owner gets at most half of the budget, and
    leaves the other half free.
    """

    def __init__(self, size: int = MAX_HELD, wait_s: float = WAIT_S) -> None:
        self._size = size
        self._wait_s = wait_s
        self._held: Counter[Hashable] = Counter()
        self._freed = asyncio.Event()

    @property
    def held(self) -> int:
        """The bytes that are held now."""
        return self._held.total()

    @contextmanager
    def hold(self, owner: Hashable) -> Iterator[HeldBytes]:
        """The bytes of one request, none at first. They are released at the end of the block."""
        held = HeldBytes(self, owner)
        try:
            yield held
        finally:
            held.drop()

    def try_change(self, owner: Hashable, before: int, after: int) -> bool:
        """Change the size of one of the owner's requests from `before` to `after` bytes. False if there is no room."""
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
        """Like `try_change`, but wait for room. Raises `MemoryFull`."""
        if self.try_change(owner, before, after):  # The usual case, without the cost of a timer.
            return
        try:
            async with asyncio.timeout(self._wait_s):
                while not self.try_change(owner, before, after):
                    await self._freed.wait()
        except TimeoutError:
            raise MemoryFull from None


class HeldBytes:
    """The bytes that are held for one request. `Room.hold` creates this object."""

    def __init__(self, room: Room, owner: Hashable) -> None:
        self._room = room
        self._owner = owner
        self._size = 0
        self.content = b""

    async def grow(self, more: int) -> None:
        """Hold `more` additional bytes. Waits for room, and raises `MemoryFull`."""
        await self._room.change(self._owner, self._size, self._size + more)
        self._size += more

    def resize(self, size: int) -> bool:
        """Hold `size` bytes. If there is no room, change nothing and return False."""
        if not self._room.try_change(self._owner, self._size, size):
            return False
        self._size = size
        return True

    def replace(self, content: bytes) -> None:
        """Hold `content` instead of the current bytes."""
        self.content = content
        # Without room, the old size continues to count. The new content is about as long.
        self.resize(len(content))

    def take(self) -> bytes:
        """Return the content, and keep no reference to it. Its size counts until `drop`."""
        content, self.content = self.content, b""
        return content

    def drop(self) -> None:
        """Release all bytes."""
        self.content = b""
        self.resize(0)
