"""The proxy through which a job without a network reaches the package hosts on the operator's list.

The traffic is encrypted between the job and the host. This module does not interpret it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog

from bot.gateway.proxy import WRONG_TOKEN, JobEndpoint
from bot.gateway.threads import run_in_turn
from runner.model.environment import Profile
from runner.steps.gateway import Fetcher, GatewayRoute
from runner.transport.listening import LocalStream, PeekedStream, Stream, join, peek

log = structlog.get_logger()

METHOD = b"CONNECT "
MAX_HEAD = 8_192
"""The most bytes of a request's first line and headers. Programs send a few hundred."""
HEAD_S, CONNECT_S = 10.0, 10.0
LOOKUP_THREADS = 32
"""Threads for DNS lookups, for all jobs together. A lookup may take half a minute to fail."""
TLS_PORT = 443
MAX_HELLO = 32_768
"""The most bytes that are read until the first TLS message (ClientHello) is complete. A real one has about 2,000."""
HANDSHAKE, SERVER_HELLO = 22, 2
"""The kind of TLS records that begin a connection, and of the server's first message (RFC 8446, sections 5.1 and 4)."""
RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The server's random number when it asks for another ClientHello (HelloRetryRequest, RFC 8446, section 4.1.3)."""
CIPHER_CHANGES = tuple(bytes([20, 3, minor, 0, 1, 1]) for minor in range(5))
"""Records (ChangeCipherSpec) that can come before a second ClientHello, and mean nothing (RFC 8446, appendix D.4)."""
RECORD_HEAD, RANDOM_AT = 5, 11
"""Bytes before a record's content, and before the random number in the server's first record."""
PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
"""The global unicast addresses. Local addresses are not in it, and neither is 64:ff9b::/96, which embeds IPv4."""
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        # IPv6: protocols (Teredo, ORCHID), documentation, 6to4, documentation. IPv4: protocols, 6to4 relays.
        # `ipaddress` knows some of them, depending on the version of Python.
        # https://www.iana.org/assignments/iana-ipv6-special-registry
        ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "192.0.0.0/24", "192.88.99.0/24"),
    )
)
REQUEST = re.compile(r"CONNECT ([A-Za-z0-9.-]{1,253}):([0-9]{1,5}) HTTP/1\.[01]")
CREDENTIALS = re.compile(r"proxy-authorization:[ \t]*basic[ \t]+([A-Za-z0-9+/=]+)[ \t]*", re.IGNORECASE)


class NotConnected(Exception):  # noqa: N818 - a refusal, and usually not a fault
    """A connection is refused. `status` is for the program that asked, and the message is for its log."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class NoHello(Exception):  # noqa: N818 - a refusal
    """The connection does not begin with a TLS ClientHello for the host that was allowed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The destination that a program asks for, and the token that it sent."""

    host: str
    port: int
    token: str


def read_wanted(head: bytes) -> Wanted:
    """Read a CONNECT request (RFC 9110, section 9.3.6). Raises `NotConnected`."""
    request, *lines = head.decode("latin-1").split("\r\n")
    found = REQUEST.fullmatch(request)
    if not found or int(found[2]) > 65_535:
        raise NotConnected(400, "this is no request for a connection: HOST:PORT is missing")
    given = [match[1] for line in lines if (match := CREDENTIALS.fullmatch(line))]
    token = ""
    with suppress(binascii.Error, UnicodeDecodeError):
        token = base64.b64decode(given[0], validate=True).decode().partition(":")[2] if given else ""
    return Wanted(found[1].lower().rstrip("."), int(found[2]), token)


def find_host(wanted: Wanted, hosts: Sequence[str]) -> str | None:
    """The entry of the operator's list that allows the destination. None if there is none.

    An entry is a host name, or `*.` and a domain. Without a port, it allows port 443.
    """
    for entry in hosts:
        name, _, port = entry.lower().partition(":")
        if wanted.port == int(port or TLS_PORT) and (
            wanted.host == name or (name.startswith("*.") and wanted.host.endswith(name[1:]))
        ):
            return entry
    return None


def look_up(host: str, port: int) -> list[str]:
    """The IP addresses of a host. Raises `OSError`, and `UnicodeError` if `host` cannot be a host name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


class PackageProxy:
    """Connects each job to the package hosts in its repository's table."""

    def __init__(self, profiles: Mapping[str, Profile], look_up: Callable[[str, int], Sequence[str]] = look_up) -> None:
        """`look_up` may block, because it runs in a thread."""
        self._profiles = profiles
        self._look_up = look_up
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, "gateway-names")

    def find_hosts(self, fetcher: Fetcher) -> tuple[str, ...]:
        """The hosts that the job's agent reaches through the gateway. Empty if the agent has a network."""
        profile = self._profiles.get(fetcher.repository)
        return profile.package_hosts if profile and profile.network == "none" else ()

    def build_route(self, endpoint: JobEndpoint) -> GatewayRoute:
        """The environment variables for a job's programs. curl, pip, uv, npm and others read them."""
        address = f"http://job:{endpoint.token}@{{relay}}"
        env = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), address)
        return GatewayRoute(
            {**env, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}, by_relay=True
        )

    async def answer(self, endpoint: JobEndpoint, stream: Stream) -> None:
        """Handle one CONNECT request, and pass data on until either side ends the connection. Raises `OSError`."""
        try:
            async with asyncio.timeout(HEAD_S):
                head, rest = await _read_head(stream)
            wanted = read_wanted(head)
            theirs = await self._connect(endpoint, wanted)
        except TimeoutError:
            stream.abort()
            return
        except NotConnected as refusal:
            await endpoint.note_refusal(str(refusal), has_token=asyncio.current_task() not in endpoint.strangers)
            await _turn_away(stream, _say(refusal.status, str(refusal)))
            return
        try:
            await stream.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            if wanted.port == TLS_PORT:
                await join_tls(wanted.host, stream, rest, theirs)
            else:
                await join(PeekedStream(stream, rest), theirs)
        except (NoHello, TimeoutError) as refusal:
            await endpoint.note_refusal(f"{wanted.host}: {refusal or 'it said nothing'}")
            stream.abort()
        finally:
            theirs.abort()

    async def _connect(self, endpoint: JobEndpoint, wanted: Wanted) -> Stream:
        if not hmac.compare_digest(wanted.token.encode(), endpoint.token.encode()):
            raise NotConnected(407, WRONG_TOKEN)
        task = asyncio.current_task()
        assert task
        endpoint.trust(task)
        if not endpoint.is_open:
            raise NotConnected(403, "the run is over")
        entry = find_host(wanted, endpoint.package_hosts)
        if not entry:
            words = f"{wanted.host}:{wanted.port} is not among the package_hosts of the repository's table"
            raise NotConnected(403, words)
        try:
            async with asyncio.timeout(CONNECT_S):
                addresses = await self._find_addresses(endpoint, wanted, is_public=entry.startswith("*"))
                theirs = await connect_first(addresses, wanted.port)
        except (OSError, TimeoutError, UnicodeError):
            raise NotConnected(502, f"{wanted.host} cannot be reached just now") from None
        if endpoint.may_log("connections"):
            log.info("gateway.joined", **endpoint.context, host=wanted.host)
        return theirs

    async def _find_addresses(self, endpoint: JobEndpoint, wanted: Wanted, *, is_public: bool) -> Sequence[str]:
        """The IP addresses of a host. With `is_public`, all of them must be public.

        The owner of a domain decides where the names in it lead. A name that only a `*.` entry allows must not lead
        into the service's own network. Raises `NotConnected`, and the errors of `look_up`.
        """
        addresses = await run_in_turn(
            self._threads, endpoint.looking_up, partial(self._look_up, wanted.host, wanted.port)
        )
        if is_public and not all(map(is_public_address, addresses)):
            raise NotConnected(403, f"{wanted.host} leads to no public address")
        return addresses


async def connect_first(addresses: Sequence[str], port: int) -> Stream:
    """Connect to the first address that accepts. The network may support only IPv4 or only IPv6. Raises `OSError`."""
    *others, last = addresses
    for address in others:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S / len(addresses)):
                return LocalStream(*await asyncio.open_connection(address, port))
    return LocalStream(*await asyncio.open_connection(last, port))


def is_public_address(address: str) -> bool:
    """Whether an address, which may have a zone, is on the public internet. Pure.

    An IPv4-mapped address counts as its IPv4 address. Other addresses that embed an IPv4 address are not public.
    """
    read = ipaddress.ip_address(address)
    if isinstance(read, ipaddress.IPv6Address):
        if read.ipv4_mapped:
            return is_public_address(str(read.ipv4_mapped))
        if read.scope_id or read not in PUBLIC_V6:
            return False
    return read.is_global and not read.is_multicast and not any(read in network for network in NOT_PUBLIC)


async def _read_head(stream: Stream) -> tuple[bytes, bytes]:
    """A request's first line and headers, and the bytes after them. Raises `NotConnected` and `OSError`."""
    head = b""
    while b"\r\n\r\n" not in head:
        more = await stream.read()
        if not more or len(head) + len(more) > MAX_HEAD:
            raise NotConnected(400, "this is no request for a connection")
        head += more
    lines, _, rest = head.partition(b"\r\n\r\n")
    return lines, rest


class _Client(ssl.SSLObject):
    """The server's view of a TLS client."""

    host: str | None = None
    """The host that the client asks for (SNI)."""


def _note_host(client: ssl.SSLObject, host: str | None, _context: ssl.SSLContext) -> int:
    assert isinstance(client, _Client)
    client.host = host
    return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME  # This ends the handshake. The client never sees the alert.


TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
"""A server without a certificate. It only reads the client's first message, and sends no answer."""
TLS.sslobject_class = _Client
TLS.sni_callback = _note_host


async def join_tls(host: str, stream: Stream, first: bytes, theirs: Stream) -> None:
    """Pass a TLS connection to `host` on, as `join` does. `first` was already read from the stream.

    A server may ask for a second ClientHello. That one is not encrypted either, and could name another host. So nothing
    after the first ClientHello is passed on before the server has answered. Raises the errors of `read_hello`.
    """
    hello, rest = await read_hello(host, stream, first)
    await theirs.write(hello)
    async with asyncio.timeout(HEAD_S):
        answer = await peek(theirs, RANDOM_AT + len(RETRY))
    said = answer.first
    asks_again = said[:1] == bytes([HANDSHAKE]) and said[RECORD_HEAD : RECORD_HEAD + 1] == bytes([SERVER_HELLO])
    asks_again = asks_again and said[RANDOM_AT:].startswith(RETRY)
    await join(_SecondHello(host, stream, rest) if asks_again else PeekedStream(stream, rest), answer)


class _SecondHello(PeekedStream):
    """A client's stream that must continue with a second ClientHello for the same host.

    `read` raises the errors of `read_hello`.
    """

    def __init__(self, host: str, stream: Stream, first: bytes) -> None:
        super().__init__(stream, first)
        self._host: str | None = host

    async def read(self) -> bytes:
        """See `Stream`."""
        if (host := self._host) is None:
            return await super().read()
        self._host = None
        begun = await peek(self, RECORD_HEAD + 1)
        skipped = RECORD_HEAD + 1 if begun.first.startswith(CIPHER_CHANGES) else 0
        hello, rest = await read_hello(host, self, begun.first[skipped:])
        return begun.first[:skipped] + hello + rest


async def read_hello(host: str, stream: Stream, first: bytes) -> tuple[bytes, bytes]:
    """The first message of a TLS connection, and the bytes that were read after it. The message must ask for `host`.

    `first` was already read from the stream. One address can serve many hosts, and the client names the host that it
    wants. A name that the client encrypts (ECH) cannot be checked. Raises `NoHello`, `TimeoutError`, and `OSError`.
    """
    received, said, more = ssl.MemoryBIO(), bytearray(), first
    client = TLS.wrap_bio(received, ssl.MemoryBIO(), server_side=True)
    async with asyncio.timeout(HEAD_S):
        while True:
            said += more
            received.write(more)
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                break
            if len(said) > MAX_HELLO:
                raise NoHello("its first message is too long")
            if not (more := await stream.read()):
                raise NoHello("its first message has no end")
    assert isinstance(client, _Client)
    end = len(said) - received.pending
    if not client.host or not _is_alone(bytes(said[:end])):
        raise NoHello("it does not begin as TLS does, or does not say which host it wants")
    if client.host.lower().rstrip(".") != host:
        raise NoHello("it asks for another host at the same address")
    return bytes(said[:end]), bytes(said[end:])


def _is_alone(records: bytes | bytearray) -> bool:
    """Whether there is only one handshake message in whole TLS records. Pure."""
    message, at = bytearray(), 0
    while at < len(records):
        if records[at] != HANDSHAKE:
            return False
        begin = at + RECORD_HEAD
        at = begin + int.from_bytes(records[begin - 2 : begin])
        message += records[begin:at]
    return len(message) == 4 + int.from_bytes(message[1:4])


async def _turn_away(stream: Stream, answer: bytes) -> None:
    """Answer, and close the connection once the other side has had time to read the answer. Raises `OSError`."""
    try:
        await stream.write(answer)
        await stream.end()
        async with asyncio.timeout(HEAD_S):
            while await stream.read():
                pass
    except TimeoutError:
        pass
    finally:
        stream.abort()


def _say(status: int, words: str) -> bytes:
    text = f"ptq-bot: {words}\n".encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + text
