"""The way of a sealed job to hosts of packages: what it connects, and what it does not."""

from __future__ import annotations

import asyncio
import base64
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from bot.gateway.endpoints import ModelGateway
from bot.gateway.packages import (
    LOOKUP_THREADS,
    MAX_HEAD,
    MAX_HELLO,
    RETRY,
    NoHello,
    NotConnected,
    PackageProxy,
    Wanted,
    connect_first,
    find_host,
    is_public_address,
    join_tls,
    look_up,
    read_hello,
    read_wanted,
)
from bot.gateway.proxy import MAX_LOOKUPS
from runner.model.environment import Profile
from runner.steps.gateway import Fetcher
from runner.transport.jobd_client import JobdClient
from runner.transport.listening import LocalStream
from tests.support.certificates import COMPANY, make_certificate
from tests.support.gateway import Pieces, Wire, make_no_git
from tests.support.jobs import NOON, open_database

JOB = Fetcher("a" * 10, "octo/widgets", private=False, clone_url="https://github.com/octo/widgets.git")
OTHER = Fetcher("b" * 10, "octo/widgets", private=False, clone_url="https://github.com/octo/widgets.git")


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        (b"CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443", Wanted("pypi.org", 443, "")),
        (b"CONNECT PyPI.org.:443 HTTP/1.1\r\nProxy-Authorization: Basic am9iOmFiYw==", Wanted("pypi.org", 443, "abc")),
        (b"CONNECT a:1 HTTP/1.0\r\nproxy-authorization:basic !!!", Wanted("a", 1, "")),
        (b"CONNECT a:1 HTTP/1.0\r\nproxy-authorization: basic /w==", Wanted("a", 1, "")),
    ],
)
def test_a_request_for_a_connection_is_read(head: bytes, wanted: Wanted) -> None:
    assert read_wanted(head) == wanted


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT pypi.org HTTP/1.1",
        b"CONNECT pypi.org:99999 HTTP/1.1",
        b"CONNECT [::1]:443 HTTP/1.1",
        b"CONNECT a b:443 HTTP/1.1",
        b"CONNECT x@pypi.org:443 HTTP/1.1",
        b"GET http://pypi.org/ HTTP/1.1",
        b"CONNECT \xff:443 HTTP/1.1",
    ],
)
def test_what_is_no_such_request_is_refused(head: bytes) -> None:
    with pytest.raises(NotConnected) as refused:
        read_wanted(head)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("host", "port", "entry"),
    [
        ("pypi.org", 443, "pypi.org"),
        ("files.example.org", 443, "*.Example.org"),
        ("mirror.lan", 8443, "mirror.lan:8443"),
        ("pypi.org", 80, None),
        ("evilpypi.org", 443, None),
        ("pypi.org.evil.net", 443, None),
        ("example.org", 443, None),
        ("badexample.org", 443, None),
        ("mirror.lan", 443, None),
        ("127.0.0.1", 443, None),
    ],
)
def test_only_hosts_of_the_list_are_connected(host: str, port: int, entry: str | None) -> None:
    assert find_host(Wanted(host, port, ""), ("pypi.org", "*.Example.org", "mirror.lan:8443")) == entry


@dataclass
class Floor:
    gateway: ModelGateway
    wire: Wire
    port: int

    async def lead(self, reader: Fetcher) -> str:
        """The address that a job's programs get."""
        return (await self.gateway.open_package_route(reader, cast(JobdClient, self.wire))).env["HTTPS_PROXY"]

    async def connect(self, reader: Fetcher, host: str, port: int, token: str, said: bytes = b"") -> bytes:
        """All that comes back when a program of the job asks for a connection, and says something at once."""
        their_reader, writer = await asyncio.open_unix_connection(self.wire.paths[reader.id])
        credentials = base64.b64encode(f"job:{token}".encode()).decode()
        for part in (b"CON", f"NECT {host}:{port} HTTP/1.1\r\n".encode()):
            writer.write(part)
            await asyncio.sleep(0.01)
        writer.write(f"Proxy-Authorization: Basic {credentials}\r\n\r\n".encode() + said)
        writer.write_eof()
        answer = await asyncio.wait_for(their_reader.read(), 10)
        writer.close()
        return answer


@asynccontextmanager
async def open_floor(
    folder: Path, *hosts: str, look_up: Callable[[str, int], Sequence[str]] = look_up
) -> AsyncIterator[Floor]:
    """A gateway, and a host that says everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    profile = Profile("octo/widgets", network="none", package_hosts=tuple(host.format(port=port) for host in hosts))
    async with server, open_database(folder) as db:
        packages = PackageProxy({"octo/widgets": profile}, look_up)
        session = cast(aiohttp.ClientSession, None)
        gateway = ModelGateway(session, db, {}, {}, lambda: NOON, make_no_git(session), packages)
        floor = Floor(gateway, Wire(folder), port)
        yield floor
        for job_id in floor.wire.paths:
            await gateway.close(job_id)


def read_token(address: str) -> str:
    return address.partition("//job:")[2].partition("@")[0]


async def test_a_host_of_the_list_is_reached_with_the_jobs_token(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "localhost:{port}") as floor:
        address = await floor.lead(JOB)
        assert address.endswith("@{relay}")
        answer = await floor.connect(JOB, "localhost", floor.port, read_token(address), b"packages")
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\nPACKAGES"


async def test_another_host_another_token_and_another_jobs_token_are_refused_in_words(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "localhost:{port}") as floor:
        token, theirs = read_token(await floor.lead(JOB)), read_token(await floor.lead(OTHER))
        refused = await floor.connect(JOB, "127.0.0.1", floor.port, token)
        assert refused.startswith(b"HTTP/1.1 403 ")
        assert b"is not among the package_hosts of the repository's table" in refused
        for wrong in ("", "x", theirs):
            assert (await floor.connect(JOB, "localhost", floor.port, wrong)).startswith(b"HTTP/1.1 407 ")


async def test_the_end_of_names_leads_to_no_private_address(tmp_path: Path) -> None:
    # Every name below localhost is this machine (RFC 6761, section 6.3).
    async with open_floor(tmp_path, "*.localhost:{port}") as floor:
        token = read_token(await floor.lead(JOB))
        answer = await floor.connect(JOB, "a.localhost", floor.port, token)
        assert b"leads to no public address" in answer or b"cannot be reached just now" in answer


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("::ffff:93.184.215.14", True),
        *((address, False) for address in ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254")),
        *((address, False) for address in ("0.0.0.0", "100.64.0.1", "192.0.0.8", "192.88.99.1", "198.18.0.1")),
        *((address, False) for address in ("224.0.0.1", "240.0.0.1", "255.255.255.255", "203.0.113.1")),
        *((address, False) for address in ("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1")),
        ("fec0::1", False),  # Site-local, RFC 3879.
        ("feff::1", False),
        ("::10.1.2.3", False),  # IPv4-compatible, RFC 4291.
        ("::93.184.215.14", False),
        ("::ffff:10.1.2.3", False),
        ("::ffff:0:10.1.2.3", False),  # Translated, RFC 2765.
        ("64:ff9b::10.1.2.3", False),
        ("64:ff9b:1::10.1.2.3", False),
        ("2002:0a01:0203::1", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),  # Teredo.
        *((address, False) for address in ("2001:10::1", "2001:20::1", "2001:db8::1", "3fff::1", "5f00::1", "100::1")),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c%eth0", False),
    ],
)
def test_an_address_that_is_local_or_stands_for_another_is_not_public(address: str, *, expected: bool) -> None:
    assert is_public_address(address) is expected


async def test_of_several_addresses_one_that_leads_nowhere_is_passed_over(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "localhost:{port}") as floor:
        stream = await connect_first(["127.0.0.2", "127.0.0.1"], floor.port)
        await stream.write(b"packages")
        await stream.end()
        assert await stream.read() == b"PACKAGES"
        stream.abort()
        with pytest.raises(ConnectionRefusedError):
            await connect_first(["127.0.0.2", "127.0.0.3"], floor.port)


async def test_a_host_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "localhost:1") as floor:
        token = read_token(await floor.lead(JOB))
        answer = await floor.connect(JOB, "localhost", 1, token)
        assert answer.startswith(b"HTTP/1.1 502 ")


async def test_names_of_one_job_are_looked_up_two_at_a_time_and_those_of_others_do_not_wait(tmp_path: Path) -> None:
    """The names of the first job have a name server that does not answer."""
    go, begun = threading.Event(), list[str]()

    def look_up(host: str, port: int) -> list[str]:
        begun.append(host)
        if host.startswith("slow"):
            go.wait(30)
        raise OSError

    async with open_floor(tmp_path, "*.example", look_up=look_up) as floor:
        token, theirs = read_token(await floor.lead(JOB)), read_token(await floor.lead(OTHER))
        names = [f"slow-{number}.example" for number in range(2 * LOOKUP_THREADS)]
        asked = [asyncio.create_task(floor.connect(JOB, name, 443, token)) for name in names]
        async with asyncio.timeout(10):
            while len(begun) < MAX_LOOKUPS:
                await asyncio.sleep(0.005)
            assert (await floor.connect(OTHER, "quick.example", 443, theirs)).startswith(b"HTTP/1.1 502 ")
            await asyncio.to_thread(go.is_set)  # Whoever has no part in it has a thread all the same.
        assert len(begun) == MAX_LOOKUPS + 1
        go.set()
        answers = await asyncio.gather(*asked)
        assert all(answer.startswith(b"HTTP/1.1 502 ") for answer in answers)


@pytest.mark.parametrize("host", ["a..localhost", "x" * 64 + ".localhost"])
async def test_a_name_that_is_none_costs_its_connection_alone(tmp_path: Path, host: str) -> None:
    async with open_floor(tmp_path, "*.localhost:{port}") as floor:
        token = read_token(await floor.lead(JOB))
        assert (await floor.connect(JOB, host, floor.port, token)).startswith(b"HTTP/1.1 502 ")


async def test_a_request_without_end_is_cut_short(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "localhost:{port}") as floor:
        await floor.lead(JOB)
        reader, writer = await asyncio.open_unix_connection(floor.wire.paths[JOB.id])
        writer.write(b"CONNECT " + b"x" * 2 * MAX_HEAD)
        assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_a_job_that_is_over_is_connected_no_more(tmp_path: Path) -> None:
    async with open_floor(tmp_path, "localhost:{port}") as floor:
        token = read_token(await floor.lead(JOB))
        reader, writer = await asyncio.open_unix_connection(floor.wire.paths[JOB.id])
        credentials = base64.b64encode(f"job:{token}".encode()).decode()
        head = f"CONNECT localhost:{floor.port} HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
        writer.write(head.encode())
        assert b"200" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        await floor.gateway.close(JOB.id)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


def make_hello(host: str | None) -> bytes:
    """What a program says first when it speaks TLS to a host."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = host is not None
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=host).do_handshake()
    return outgoing.read()


def in_records(message: bytes, size: int) -> bytes:
    """A message in records of this size."""
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def make_extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


def name_hosts(*hosts: bytes) -> bytes:
    """An extension that lists these hosts."""
    listed = b"".join(b"\0" + len(host).to_bytes(2, "big") + host for host in hosts)
    return make_extension(0, len(listed).to_bytes(2, "big") + listed)


def greet(*extensions: bytes) -> bytes:
    """A first message with these extensions."""
    joined = b"".join(extensions)
    hello = b"\3\3" + b"r" * 32 + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(joined).to_bytes(2, "big") + joined
    return b"\1" + len(hello).to_bytes(3, "big") + hello


LONG = make_extension(0x0A0A, b"g" * 14_000)
"""A GREASE extension, which every server has to pass over (RFC 8701)."""


@pytest.mark.parametrize("size", [1, 100, 65_536])
@pytest.mark.parametrize(
    "said",
    [
        make_hello("PyPI.org"),
        make_hello("pypi.org."),
        make_hello("pypi.org") + b"early data",
        in_records(make_hello("pypi.org")[5:], 1),
        in_records(greet(name_hosts(b"pypi.org")), 20),
        in_records(greet(LONG, name_hosts(b"pypi.org"), make_extension(0x1A1A, b"g" * 14_000)), 16_384),
    ],
    ids=["other letters", "a dot at the end", "early data", "a record for each byte", "two records", "long"],
)
async def test_a_first_message_that_asks_for_the_host_is_passed_on_as_it_came(said: bytes, size: int) -> None:
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    stream = Pieces(pieces[1:])
    passed, rest = await read_hello("pypi.org", stream, pieces[0])
    assert passed + rest + b"".join(stream.pieces) == said
    assert b"early" not in passed


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not begin as TLS"),
        (make_hello(None), "does not say which host"),
        (in_records(greet(), 100), "does not say which host"),
        (in_records(greet(name_hosts(b"")), 100), "does not say which host"),
        (make_hello("evil.example"), "another host"),
        (make_hello("evil.pypi.org"), "another host"),
        (make_hello("127.0.0.1"), "does not say which host"),
        (in_records(greet(name_hosts(b"127.0.0.1")), 100), "another host"),
        (in_records(greet(name_hosts(b"pypi.org\0.evil.example")), 100), "does not begin as TLS"),
        (in_records(greet(name_hosts(b"pypi.org", b"evil.example")), 1000), "does not begin as TLS"),
        (in_records(greet(name_hosts(b"pypi.org"), name_hosts(b"evil.example")), 1000), "does not begin as TLS"),
        (make_hello("pypi.org")[:-1], "has no end"),
        (b"", "has no end"),
        (b"\x16\3\1\0\0" * 100, "does not begin as TLS"),
        (in_records(b"\1\3\0\0" + b"x" * 100, 100), "does not begin as TLS"),
    ],
)
async def test_a_first_message_that_asks_for_nothing_or_for_another_host_is_refused(said: bytes, why: str) -> None:
    for pieces in ([said], [said[at : at + 1] for at in range(len(said))] or [b""]):
        with pytest.raises(NoHello, match=why):
            await read_hello("pypi.org", Pieces(pieces[1:]), pieces[0])


@dataclass
class Peer(Pieces):
    """What one side says, and what it hears."""

    heard: bytes = b""

    async def write(self, data: bytes) -> None:
        self.heard += data


HELLO, EVIL = (in_records(greet(name_hosts(host)), 1000) for host in (b"pypi.org", b"evil.example"))
ANSWER = in_records(b"\2\0\0\x26" + b"\3\3" + b"r" * 32 + b"\0\x13\1\0", 1000)
AGAIN = ANSWER.replace(b"r" * 32, RETRY)
CHANGE = b"\x14\3\3\0\1\1"


@pytest.mark.parametrize("size", [1, 65_536])
@pytest.mark.parametrize("change", [b"", CHANGE])
async def test_a_second_first_message_must_ask_for_the_same_host(change: bytes, size: int) -> None:
    nameless, early = in_records(greet(), 1000), b"\x17\3\3\0\1x" + EVIL
    for second in (EVIL, nameless, early, CHANGE + EVIL, b"\x14\3\3\1\0\1" + HELLO + EVIL):
        said = HELLO + change + second
        program, host = Peer([said[at : at + size] for at in range(0, len(said), size)]), Peer([AGAIN])
        with pytest.raises(NoHello):
            await join_tls("pypi.org", program, b"", host)
        assert host.heard == HELLO
    said = HELLO + change + HELLO + b"encrypted"
    program, host = Peer([said[at : at + size] for at in range(0, len(said), size)]), Peer([AGAIN, b"its answer"])
    await join_tls("pypi.org", program, b"", host)
    assert (host.heard, program.heard) == (said, AGAIN + b"its answer")


async def test_a_second_message_in_the_record_of_the_first_is_refused() -> None:
    both = in_records(greet(name_hosts(b"pypi.org")) + greet(name_hosts(b"evil.example")), 1000)
    with pytest.raises(NoHello):
        await read_hello("pypi.org", Pieces([]), both)


async def test_a_program_that_a_real_server_asks_again_is_connected(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    offers, trusts = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context(cafile=certificate)
    offers.load_cert_chain(certificate, key)
    offers.set_ecdh_curve("secp384r1")  # The program's first message has a key for another curve.
    offers.minimum_version = ssl.TLSVersion.TLSv1_3

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = LocalStream(*await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1]))
        await join_tls(COMPANY, LocalStream(reader, writer), b"", host)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=offers)
    proxy = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    async with server, proxy:
        port = proxy.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusts, server_hostname=COMPANY)
        writer.write(b"packages\n")
        assert await asyncio.wait_for(reader.readline(), 10) == b"PACKAGES\n"
        writer.close()


async def test_after_a_servers_answer_everything_is_passed_on() -> None:
    program, host = Peer([HELLO + CHANGE, b"encrypted"]), Peer([ANSWER[:20], ANSWER[20:], b"more"])
    await join_tls("pypi.org", program, b"", host)
    assert (host.heard, program.heard) == (HELLO + CHANGE + b"encrypted", ANSWER + b"more")


NOT_ASCII = in_records(greet(name_hosts(b"pypi.\xf6rg")), 1000)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_name_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(NoHello, match="does not begin as TLS"):
        await read_hello("pypi.org", Pieces([]), NOT_ASCII)


async def test_a_first_message_without_end_is_refused_while_it_arrives() -> None:
    said = in_records(b"\1\1\0\0" + b"x" * 65_000, 16_000)
    stream = Pieces([said[at : at + 1000] for at in range(0, len(said), 1000)])
    with pytest.raises(NoHello, match="too long"):
        await read_hello("pypi.org", stream, b"")
    assert sum(map(len, stream.pieces)) >= len(said) - MAX_HELLO - 1000


def test_a_repository_with_a_network_needs_no_proxy() -> None:
    profiles = {"octo/widgets": Profile("octo/widgets", package_hosts=("pypi.org",))}
    assert PackageProxy(profiles).find_hosts(JOB) == ()
