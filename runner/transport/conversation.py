"""Sends many requests to one process on a machine, and returns each answer as soon as it arrives.

The requests only read. So a request can be sent again in another way if its conversation is lost. This module does not
interpret requests or answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

from runner.transport.listening import Stream

PATIENCE_S = 20.0
"""How long an answer may take, in addition to the request's own wait."""

REST_S = 60.0
"""How many seconds after a time-out no request uses the conversation. Each would wait for the full time-out."""

MAX_ANSWER_BYTES = 4_000_000
"""The size limit of one answer. The conversation ends if it is exceeded."""

MAX_UNASKED = 100
"""The most lines in a row that answer no request. Login shells print a few, and callers may leave before the answer."""


class ConversationLost(Exception):  # noqa: N818 - a state
    """A request was not answered. The message is a clause for people."""


class Conversation:
    """Sends requests to a command. `begin` starts the command for the first request, and again after it has ended."""

    def __init__(self, begin: Callable[[], Awaitable[Stream]], patience_s: float = PATIENCE_S) -> None:
        self._begin = begin
        self._patience_s = patience_s
        self._beginning: asyncio.Task[_Talk] | None = None
        self._rests_until = 0.0
        self._silence = ""

    async def ask(self, question: bytes, wait_s: float = 0.0) -> bytes:
        """Send a request of one line, and return its answer. The machine may wait up to `wait_s` before it answers.

        Raises `ConversationLost`, also for an `OSError` of `begin`, and any other exception that `begin` raises.
        """
        now = asyncio.get_running_loop().time
        if now() < self._rests_until:
            raise ConversationLost(self._silence)
        if self._beginning is None or _is_over(self._beginning):
            self._beginning = asyncio.create_task(self._open())
            self._beginning.add_done_callback(_read_error)
        # Shielded, because others may wait for the same task when this caller is cancelled.
        talk = await asyncio.shield(self._beginning)
        try:
            return await talk.ask(question, self._patience_s + wait_s)
        except TimeoutError:
            self._rests_until = now() + REST_S
            self._silence = f"it did not answer within {self._patience_s + wait_s:g} seconds"
            raise ConversationLost(self._silence) from None

    async def _open(self) -> _Talk:
        try:
            return _Talk(await self._begin())
        except OSError as error:
            raise ConversationLost("it could not be started") from error


def _is_over(beginning: asyncio.Task[_Talk]) -> bool:
    """Whether the command could not be started, or has ended since."""
    if not beginning.done():
        return False
    return beginning.cancelled() or beginning.exception() is not None or beginning.result().is_over


def _read_error(beginning: asyncio.Task[_Talk]) -> None:
    """Read the error of a start whose callers may all be cancelled. Otherwise asyncio logs it as handled by nobody."""
    if not beginning.cancelled():
        beginning.exception()


class _Talk:
    """One command, with its standard input and output."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._numbers = count(1)
        self._asked: dict[bytes, asyncio.Future[bytes | None]] = {}
        """The waiting callers, by the number of their request; None means that no answer will come."""
        self._unasked = 0
        """Lines since the last answer that a caller received."""
        self.is_over = False
        self._listening = asyncio.create_task(self._listen())

    async def ask(self, question: bytes, patience_s: float) -> bytes:
        if self.is_over:
            raise ConversationLost("it ended")
        number = b"%d" % next(self._numbers)
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        try:
            async with asyncio.timeout(patience_s):
                await self._stream.write(b"%b %b\n" % (number, question))
                answer = await answered
        except TimeoutError:
            self._end()
            raise
        except OSError:
            self._end()
            answer = None
        finally:
            del self._asked[number]
        if answer is None:
            raise ConversationLost("it ended")
        return answer

    async def _listen(self) -> None:
        unread = bytearray()
        with suppress(OSError):
            while len(unread) < MAX_ANSWER_BYTES and (data := await self._stream.read()):
                *lines, rest = data.split(b"\n")
                for line in lines:
                    self._take(bytes(unread + line))
                    unread.clear()
                    if self._unasked > MAX_UNASKED:
                        return self._end()
                unread += rest
                await asyncio.sleep(0)  # Reading data that has arrived already does not yield to other tasks.
        return self._end()

    def _take(self, line: bytes) -> None:
        number, _, answer = line.partition(b" ")
        answered = self._asked.get(number)  # A login shell may have printed other lines.
        if answered and not answered.done():
            answered.set_result(answer)
            self._unasked = 0
        else:
            self._unasked += 1

    def _end(self) -> None:
        self.is_over = True
        self._stream.abort()
        for answered in self._asked.values():
            if not answered.done():
                answered.set_result(None)
