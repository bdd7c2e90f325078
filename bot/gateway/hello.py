"""What the first message of a TLS connection says of where it wants to go. Pure.

One address serves many hosts: behind a proxy's list of names stands only what this message says, too.
RFC 8446, section 4.1.2 (ClientHello); RFC 6066, section 3 (server name)
"""

from __future__ import annotations

HANDSHAKE, CLIENT_HELLO = 22, 1
SERVER_NAME, ENCRYPTED_HELLO = 0, 0xFE0D
"""Extensions; the second hides another name than it shows (RFC 9849)."""


class NoHello(Exception):  # noqa: N818 - what it is
    """The connection does not begin as TLS does, or hides where it wants to go."""


class _Reader:
    """Takes a message apart. Raises `NoHello` where it ends too soon."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, size: int) -> bytes:
        if size > len(self._data):
            raise NoHello("its first message is cut short")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def take_all(self) -> bytes:
        return self.take(len(self._data))

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> _Reader:
        return _Reader(self.take(self.number(size)))

    def __bool__(self) -> bool:
        return bool(self._data)


def read_server_name(data: bytes) -> str | None:
    """The host that is asked for; None while there is too little to tell. Raises `NoHello`."""
    message = _join_records(data)
    if message is None or len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4], "big"):
        return None
    if message[0] != CLIENT_HELLO:
        raise NoHello("it does not begin as TLS does")
    hello = _Reader(message[4 : 4 + int.from_bytes(message[1:4], "big")])
    hello.take(34)  # Version and random.
    for length in (1, 2, 1):  # Session, ciphers, compression.
        hello.vector(length)
    extensions, names = hello.vector(2), list[bytes]()
    while extensions:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == ENCRYPTED_HELLO:
            raise NoHello("it hides where it wants to go (ECH)")
        if kind == SERVER_NAME:
            listed = content.vector(2)
            if listed.number(1) == 0:
                names.append(listed.vector(2).take_all())
    if len(names) != 1 or not names[0].isascii():
        raise NoHello("it does not say which host it wants")
    return names[0].decode().lower().rstrip(".")


def _join_records(data: bytes) -> bytes | None:
    """The handshake in the records that are whole; None where not one is. Raises `NoHello`."""
    message = b""
    while len(data) >= 5:
        if data[0] != HANDSHAKE:
            raise NoHello("it does not begin as TLS does")
        end = 5 + int.from_bytes(data[3:5], "big")
        if len(data) < end:
            break
        message, data = message + data[5:end], data[end:]
    if data[:1] and data[0] != HANDSHAKE:
        raise NoHello("it does not begin as TLS does")
    return message or None
