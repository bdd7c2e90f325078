"""What the first message of a TLS connection says of where it wants to go. Pure.

One address serves many hosts: behind a proxy's list of names stands only what this message says, too.
RFC 8446, section 4.1.2 (ClientHello); RFC 6066, section 3 (server name)
"""

from __future__ import annotations

from collections.abc import Sequence

HANDSHAKE, CLIENT_HELLO, HOST_NAME = 22, 1, 0
SERVER_NAME, ENCRYPTED_HELLO = 0, 0xFE0D
"""Extensions; the second hides another name than it shows (RFC 9849)."""

RECORD_HEAD, MESSAGE_HEAD = 5, 4
"""Bytes before the content of a record, and of a handshake message."""

MAX_HELLO, MAX_RECORDS = 16_384, 16
"""Bytes of a first message or a record, and how many records a message may come in. An honest one has one record of
about 2,000 bytes; no record may be longer (RFC 8446, section 5.1)."""


class NoHello(Exception):  # noqa: N818 - what it is
    """The connection does not begin as TLS does, or hides where it wants to go."""


class _Reader:
    """Takes a message apart without copying what is left. Raises `NoHello` where it ends too soon."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, size: int) -> memoryview:
        if size > len(self._data):
            raise NoHello("its first message is cut short")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def take_all(self) -> bytes:
        return bytes(self.take(len(self._data)))

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> _Reader:
        return _Reader(self.take(self.number(size)))

    def __bool__(self) -> bool:
        return len(self._data) > 0


def read_server_name(data: bytes | bytearray) -> str | None:
    """The host that is asked for; None while there is too little to tell. Raises `NoHello`.

    It may be called for every piece that arrives: until the message is whole, only the heads of its records are read.
    """
    message = _join_records(data)
    if message is None:
        return None
    hello = _Reader(memoryview(message))
    hello.take(34)  # Version and random.
    for length in (1, 2, 1):  # Session, ciphers, compression.
        hello.vector(length)
    extensions, names = hello.vector(2), list[bytes]()
    while extensions:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == ENCRYPTED_HELLO:
            raise NoHello("it hides where it wants to go (ECH)")
        if kind == SERVER_NAME:
            names.append(_read_only_name(content))
    if len(names) != 1 or not names[0].isascii():
        raise NoHello("it does not say which host it wants")
    return names[0].decode().lower().rstrip(".")


def _read_only_name(content: _Reader) -> bytes:
    """The name in a list of one. A server could choose another name of a longer list."""
    listed = content.vector(2)
    kind, name = listed.number(1), listed.vector(2).take_all()
    if kind != HOST_NAME or listed or content:
        raise NoHello("it names more than one host")
    return name


def _join_records(data: bytes | bytearray) -> bytes | None:
    """What the first handshake message holds; None until it is whole. Raises `NoHello`."""
    parts, at = list[tuple[int, int]](), 0
    while at < len(data) and not _is_whole(data, parts):
        if data[at] != HANDSHAKE:
            raise NoHello("it does not begin as TLS does")
        if len(data) < at + RECORD_HEAD:
            return None
        size = int.from_bytes(data[at + 3 : at + RECORD_HEAD], "big")
        if len(parts) == MAX_RECORDS or not 0 < size <= MAX_HELLO:
            raise NoHello("its first message comes in too many pieces, or is too long")
        start, at = at + RECORD_HEAD, at + RECORD_HEAD + size
        if len(data) < at:
            return None
        parts.append((start, at))
    if not _is_whole(data, parts):
        return None
    return b"".join(data[start:end] for start, end in parts)[MESSAGE_HEAD:][: _read_size(data, parts)]


def _is_whole(data: bytes | bytearray, parts: Sequence[tuple[int, int]]) -> bool:
    """Whether these records hold all of a first message. Raises `NoHello` where its head says that none may be."""
    held = sum(end - start for start, end in parts)
    return held >= MESSAGE_HEAD and held >= MESSAGE_HEAD + _read_size(data, parts)


def _read_size(data: bytes | bytearray, parts: Sequence[tuple[int, int]]) -> int:
    """How long the message says that it is, without its head."""
    head = b"".join(data[start : min(end, start + MESSAGE_HEAD)] for start, end in parts[:MESSAGE_HEAD])
    size = int.from_bytes(head[1:MESSAGE_HEAD], "big")
    if head[0] != CLIENT_HELLO:
        raise NoHello("it does not begin as TLS does")
    if size > MAX_HELLO:
        raise NoHello("its first message is too long")
    return size
