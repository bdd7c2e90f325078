"""The load: signed deliveries over connections that stay open, each sent as soon as the one before it is answered.

Everything about a request but its delivery id is made beforehand, and sockets are used directly: the sender must not
be what limits a server. It refuses to know what the servers are.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import select
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.support.descriptions import find_webhook_examples

PAYLOAD_SIZE = 12_700
"""Bytes of a payload: a little more than GitHub's own example of a comment has."""

PATIENCE_S = 30.0

PLACE = b"00000000-0000-0000-0000-000000000000"
"""The part of a payload that the id of its delivery replaces: equal contents count as copies."""

NODE = 0x4C9367DC0958
"""Whose ids they are: without a name of its own, each would be fetched from a file that processes share."""


class LoadFailed(Exception):  # noqa: N818
    """A server answered other than it should; the message says what."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round against one server came to."""

    seconds: float
    latencies: list[float]
    """Seconds from the first byte sent to the last one received, one for each delivery."""

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds


@dataclass(frozen=True, slots=True)
class Request:
    """A request without what differs from delivery to delivery: the signature, the id, and the id in the payload."""

    head: bytes
    """All before the signature."""
    middle: bytes
    """All between the signature and the id."""
    start: bytes
    """The payload up to the id."""
    signing: hmac.HMAC
    """The signature of that."""
    end: bytes
    """The payload after the id; empty for one that has no place for it."""

    def with_id(self) -> bytes:
        """The bytes of a delivery that was never sent before. Its id begins with the time, as GitHub's do."""
        number = str(uuid.uuid1(NODE, 0)).encode()
        rest = number + self.end if self.end else b""
        signing = self.signing.copy()  # What is the same in all of them is signed once.
        signing.update(rest)
        signature = signing.hexdigest().encode()
        return b"".join((self.head, signature, self.middle, number, b"\r\n\r\n", self.start, rest))


def make_payloads(count: int) -> list[bytes]:
    """GitHub's own example of a new comment, without a command, on so many issues, each filled up to the size.

    Raises `LoadFailed` when the example alone is larger.
    """
    (examples,) = (
        one["examples"] for one in json.loads(find_webhook_examples().read_text()) if one["name"] == "issue_comment"
    )
    payload = next(example for example in examples if example["action"] == "created")
    payload["sent"] = PLACE.decode()
    payload["comment"]["updated_at"] = datetime.now(UTC).isoformat()  # Old events are refused.
    payloads = list[bytes]()
    for number in range(1, count + 1):
        payload["issue"]["number"] = number
        payload["comment"]["body"] = ""
        missing = PAYLOAD_SIZE - len(_write_as_github(payload))
        if missing < 0:
            raise LoadFailed(f"GitHub's example is {-missing} bytes larger than {PAYLOAD_SIZE}")
        payload["comment"]["body"] = ("The same happens here with the newest release. " * 300)[:missing]
        payloads.append(_write_as_github(payload))
    return payloads


def _write_as_github(payload: object) -> bytes:
    return json.dumps(payload, separators=(",", ":")).encode()


def make_requests(path: str, secret: str, payloads: Sequence[bytes]) -> list[Request]:
    """A request for each payload, with the headers that GitHub sends."""
    requests = list[Request]()
    for payload in payloads:
        start, _, end = payload.rpartition(PLACE) if PLACE in payload else (payload, b"", b"")
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: GitHub-Hookshot/044aadd\r\nAccept: */*\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\nX-GitHub-Event: issue_comment\r\n"
            "X-GitHub-Hook-ID: 292430182\r\nX-GitHub-Hook-Installation-Target-ID: 79929171\r\n"
            "X-GitHub-Hook-Installation-Target-Type: integration\r\n"
            "X-Hub-Signature-256: sha256="
        )
        signing = hmac.new(secret.encode(), start, hashlib.sha256)
        requests.append(Request(head.encode(), b"\r\nX-GitHub-Delivery: ", start, signing, end))
    return requests


def is_whole(answer: bytes) -> bool:
    """Whether these bytes are a whole answer of HTTP/1.1, by its length or by its last chunk."""
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    if found:
        return len(body) >= int(rest.partition(b"\r\n")[0])
    return body.endswith(b"0\r\n\r\n")


class Connection:
    """One connection, with what has been answered on it so far."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.sent_at = 0.0

    def send(self, request: bytes) -> None:
        """Send a request; it fits into what the kernel holds."""
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> float | None:
        """The latency once the answer is whole. Raises `LoadFailed` for one that is no success."""
        received = self.socket.recv(65536)
        self.received += received
        if not is_whole(self.received):
            if not received:
                raise LoadFailed("the server closed a connection")
            return None
        answer, self.received = self.received, b""
        if not answer.startswith(b"HTTP/1.1 2"):
            raise LoadFailed(f"the server answered: {answer.decode(errors='replace')}")
        return time.perf_counter() - self.sent_at


def run_round(port: int, requests: Iterator[Request], seconds: float, connections: int) -> Round:
    """Send for so many seconds, or until there is nothing more to send; then wait for what is under way."""
    latencies, opened = list[float](), [Connection(port) for _ in range(connections)]
    by_number = {connection.socket.fileno(): connection for connection in opened}
    poller = select.epoll()
    began = time.perf_counter()
    for number, connection in by_number.items():
        poller.register(number, select.EPOLLIN)
        connection.send(next(requests).with_id())
    under_way = connections
    while under_way:
        ready = poller.poll(PATIENCE_S)
        if not ready:
            raise LoadFailed(f"{under_way} deliveries got no answer in {PATIENCE_S:.0f} s")
        for number, _ in ready:
            connection = by_number[number]
            if (latency := connection.receive()) is None:
                continue
            latencies.append(latency)
            request = next(requests, None) if time.perf_counter() - began < seconds else None
            if request is None:
                under_way -= 1
            else:
                connection.send(request.with_id())
    ended = time.perf_counter()
    poller.close()
    for connection in opened:
        connection.socket.close()
    return Round(ended - began, latencies)
