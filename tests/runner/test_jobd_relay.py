"""The relay on a machine: by it an agent reaches the service, whatever becomes of the connection, and nobody else."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from runner.jobd.proxy import forwarding, relay, sockets
from runner.jobd.sandbox import trial
from runner.transport.listening import Accept, Listening
from runner.transport.local_host import LocalHost
from tests.support.gateway import Wire, open_floor
from tests.support.jobd import Jobd, wait_until
from tests.support.jobs import make_job
from tests.support.model_endpoint import Say
from tests.support.sandboxes import MISSING, SEALED

pytestmark = pytest.mark.slow

needs_cells = pytest.mark.skipif(not SEALED, reason=f"this machine seals no jobs: {trial.describe_sandbox(MISSING)}")

SPEAK = """
import http.client, json, os, socket, sys, time
host, _, port = os.environ["ADDRESS"].removeprefix("http://").partition(":")
def speak(word, patience_s=20):
    said = b""
    try:
        with socket.create_connection((host, int(port)), timeout=patience_s) as one:
            one.sendall(word + b"\\n")
            while data := one.recv(65536):
                said += data
    except ConnectionResetError:
        return said, "broken off"
    return said, "ended"
def ask(token):
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]})
    connection.request("POST", "/v1/messages", body, {"x-api-key": token})
    return connection.getresponse().status
"""

Answer = Callable[[socket.socket], None]


class Service:
    """Stands for ours: listens where the machine says, and answers each connection."""

    def __init__(self, jobd: Jobd, answer: Answer) -> None:
        self.path: str = jobd.call("relay")["path"]
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.heard: list[bytes] = []
        self.open: list[socket.socket] = []
        self._answer = answer
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            self.heard.append(connection.recv(65536))
            self._answer(connection)

    def stop(self) -> None:
        """As when the connection to the machine is lost: sshd ends, and with it all of its sockets; a file stays."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.open:
            connection.close()


class RelayWire(Wire):
    """Listens for one job where its relay finds the service, and elsewhere for others."""

    def __init__(self, folder: Path, path: str) -> None:
        super().__init__(folder)
        self._path = path

    async def listen(self, job_id: str, accept: Accept) -> Listening:
        if self.paths:
            return await super().listen(job_id, accept)
        self.paths[job_id] = self._path
        return await LocalHost().listen(self._path, accept)


def greet(connection: socket.socket) -> None:
    connection.sendall(b"hello " * 100_000)
    connection.close()


def run(jobd: Jobd, script: str, **changes: object) -> None:
    """Start an agent that speaks by its relay."""
    jobd.start("", argv=[sys.executable, "-uc", SPEAK + script], env={"ADDRESS": "{gateway}"}, relay=True, **changes)


@pytest.fixture(params=["sealed", "sealed without network", "unsealed"])
def prepared(request: pytest.FixtureRequest, jobd: Jobd) -> Iterator[Jobd]:
    if request.param != "unsealed" and not SEALED:
        pytest.skip("this machine seals no jobs")
    jobd.can_seal = request.param != "unsealed"
    jobd.prepare(network="none" if "without" in request.param else "host")
    yield jobd
    jobd.call("clean")


def test_an_agent_and_the_next_process_of_its_session_reach_the_service_by_one_address(prepared: Jobd) -> None:
    service = Service(prepared, greet)
    script = "said, how = speak(b'one'); print(len(said), how, speak(b'two')[1])\n"
    script += "print(open(os.environ['HOME'] + '/s/settings.json').read(), sys.argv[1], os.environ['ADDRESS'])\n"
    words = [sys.executable, "-uc", f"{SPEAK}{script}time.sleep(60)", "url={gateway}"]
    settings = {"s/settings.json": '{"url": "{gateway}/v1"}'}
    prepared.start("", argv=words, env={"ADDRESS": "{gateway}"}, relay=True, settings=settings)
    wait_until(lambda: prepared.poll("agent")["log"].count(b"\n") == 2)
    argv = [sys.executable, "-uc", f"{SPEAK}print(speak(b'three')[1], os.environ['ADDRESS'])"]
    assert prepared.call("tell", number=1, process=0, text="", argv=argv)["taken"]
    log = prepared.wait("agent")["log"].decode()
    url = log.split()[-1]
    assert url.startswith("http://127.0.0.1:")
    first = f'600000 broken off broken off\n{{"url": "{url}/v1"}} url={url} {url}\n'
    assert log.startswith(first)
    assert log.endswith(f"broken off {url}\n")
    assert sorted(service.heard) == [b"one\n", b"three\n", b"two\n"]
    service.stop()


def test_no_piece_of_an_answer_waits_until_the_one_before_is_confirmed() -> None:
    with closing(relay.listen(0)) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        with closing(listener.accept()[0]) as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


WHATEVER_BECOMES_OF_IT = """
word = bytes(range(256)) * 12_000
with socket.create_connection((host, int(port))) as one:
    one.sendall(b"large" + word)
    time.sleep(0.5)
    said = b""
    while len(said) < len(word):
        said += one.recv(65536)
print("whole" if said == word else "broken")
with socket.create_connection((host, int(port))) as one:
    one.sendall(b"hang up")
    one.recv(9)
print(*speak(b"begin"))
while not os.path.exists(os.environ["TMPDIR"] + "/gone"):
    time.sleep(0.01)
print(len(speak(b"held")[0]))
print(speak(b"quiet"))
print(len(speak(b"last")[0]))
"""


class FickleService(Service):
    """One that treats each connection as the first word in it says."""

    def __init__(self, jobd: Jobd) -> None:
        self.hung_up = threading.Event()
        super().__init__(jobd, self.answer_word)

    def answer_word(self, connection: socket.socket) -> None:
        said = self.heard[-1]
        if said.startswith(b"large"):
            time.sleep(0.5)
            self._echo(connection, said)
        elif said == b"hang up":
            connection.sendall(b"so far")
            if not connection.recv(1):
                self.hung_up.set()
        elif said == b"begin\n":
            connection.sendall(b"so far")
        elif said != b"quiet\n":
            greet(connection)

    def _echo(self, connection: socket.socket, said: bytes) -> None:
        while len(said) < len(b"large") + 256 * 12_000:
            said += connection.recv(65536)
        connection.sendall(said.removeprefix(b"large"))
        connection.close()


def test_whatever_becomes_of_a_connection_both_sides_hear_of_it_and_new_ones_are_held(jobd: Jobd) -> None:
    jobd.prepare()
    first = FickleService(jobd)
    run(jobd, WHATEVER_BECOMES_OF_IT)

    def expect_log(log: bytes) -> None:
        wait_until(lambda: jobd.poll("agent")["log"] == log)

    # What is large arrives whole both ways, also at whoever reads late. The agent hangs up, and the service hears of
    # it. When the service is cut off, what was under way is broken off.
    wait_until(lambda: first.heard[-1:] == [b"begin\n"])
    assert first.hung_up.wait(15)
    first.stop()
    log = b"whole\nb'so far' broken off\n"
    expect_log(log)
    # While the service is away, what is new is held.
    (jobd.job.tmp / "gone").touch()
    time.sleep(1)
    expect_log(log)
    second = FickleService(jobd)
    log += b"600000\n"
    expect_log(log)
    # Behind an older socket nobody is left once there is a newer one. A network that stands still: the old sshd still
    # holds its socket, and nobody will answer there.
    wait_until(lambda: second.heard == [b"held\n", b"quiet\n"])
    third = FickleService(jobd)
    assert jobd.wait("agent")["log"] == log + b"(b'', 'broken off')\n600000\n"
    assert (second.heard, third.heard) == ([b"held\n", b"quiet\n"], [b"last\n"])
    second.stop()
    third.stop()
    jobd.call("clean")


@needs_cells
async def test_the_relay_of_another_job_is_of_no_use_without_its_token(jobd: Jobd, tmp_path: Path) -> None:
    """Both have the machine's network, and with it one loopback."""
    victim, attacker = jobd, jobd.beside()
    for one in (victim, attacker):
        await asyncio.to_thread(one.prepare)
    job, other = make_job(), make_job(id="aaaaaaaaaa", thread=8)
    async with open_floor(tmp_path, Say("Well")) as floor:
        floor.wire = RelayWire(tmp_path, victim.call("relay")["path"])
        for each in (job, other):
            await floor.begin(each)
        mine, theirs = (access.token for each in (job, other) if (access := floor.gateway.grant(each)))
        run(victim, f"print(os.environ['ADDRESS'], ask({mine!r}), flush=True); time.sleep(60)", timeout_s=60)
        await asyncio.to_thread(wait_until, lambda: victim.poll("agent")["log"].endswith(b"\n"))
        address, status = victim.poll("agent")["log"].decode().split()
        assert status == "200"
        attempts = f"{SPEAK}\nprint(ask(''), ask({theirs!r}), ask({mine!r}))"
        attacker.start("", argv=[sys.executable, "-uc", attempts], env={"ADDRESS": address})
        assert (await asyncio.to_thread(attacker.wait, "agent"))["log"] == b"401 401 200\n"
        for one in (victim, attacker):
            await asyncio.to_thread(one.call, "clean")


LOOK = """
import os, pathlib
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        descriptors = sorted((process / "fd").iterdir())
    except OSError as error:
        print(process.name, error.strerror)
        continue
    for descriptor in descriptors:
        try:
            print(*os.listdir(f"{descriptor}/.."))
        except NotADirectoryError:
            pass
        except OSError as error:
            print(process.name, error.strerror)
"""


@needs_cells
def test_no_job_sees_where_the_services_sockets_are_nor_gets_there_by_what_its_relay_has_open(jobd: Jobd) -> None:
    jobd.prepare()
    service = Service(jobd, greet)
    # Not by its path: what an operator's command names is there to be read.
    run(jobd, f"speak(b'one')\n{LOOK}print('beside:', *os.listdir(os.environ['TMPDIR'] + '/..'), *os.listdir('/tmp'))")
    log = jobd.wait("agent")["log"].decode()
    assert "Permission denied" in log
    assert "beside: " in log
    assert Path(service.path).parent.name not in log
    assert sockets.PREFIX not in log
    service.stop()
    jobd.call("clean")
    assert not Path(service.path).parent.exists()


def test_only_the_account_may_enter_the_folder_of_the_sockets(jobd_without_base: Jobd) -> None:
    jobd = jobd_without_base
    jobd.job.make_folders()
    paths = [Path(jobd.call("relay")["path"]) for _ in range(2)]
    assert paths[0].parent == paths[1].parent
    assert paths[0].name < paths[1].name, "the newer one is found first"
    about = paths[0].parent.stat()
    assert (about.st_mode & 0o777, about.st_uid) == (0o700, os.getuid())
    assert len(os.fsencode(paths[0])) < 100
    jobd.call("clean")
    assert jobd.ask("relay")["error"] == "ended"


def test_without_a_way_no_agent_is_started_that_needs_one(jobd: Jobd) -> None:
    jobd.prepare()
    jobd.start("true", relay=True)
    assert jobd.wait("agent")["error"] == "no_relay"


def test_without_a_relay_nothing_is_filled_in() -> None:
    assert relay.fill_in("a {gateway} {relay}", None) == "a {gateway} {relay}"


# What a job can cost the service


@asynccontextmanager
async def open_relay(
    folder: Path, first_bytes_s: float = forwarding.FIRST_BYTES_S
) -> AsyncIterator[tuple[int, list[float]]]:
    """A relay's port, and when the service behind it was connected to. The service sends back what it gets first."""
    connected: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(time.monotonic())
        with suppress(OSError):
            writer.write(await reader.read(100))
            await reader.read()
        writer.transport.abort()

    listener, opened = relay.listen(0), os.open(folder, os.O_PATH)
    async with await asyncio.start_unix_server(answer, folder / "000001", backlog=1000):
        task = asyncio.create_task(forwarding.forward(listener, opened, first_bytes_s))
        yield listener.getsockname()[1], connected
        task.cancel()
        await asyncio.wait([task])
    listener.close()
    os.close(opened)


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(relay.LOOPBACK, port)


async def connect_and_reset(port: int, first: bytes = b"") -> None:
    _, writer = await connect(port)
    writer.write(first)
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def ask(port: int, word: bytes) -> bytes:
    reader, writer = await connect(port)
    try:
        writer.write(word)
        return await reader.readexactly(len(word))
    finally:
        writer.transport.abort()


async def test_a_connection_without_a_byte_never_reaches_the_service(tmp_path: Path) -> None:
    async with open_relay(tmp_path) as (port, connected):
        for _ in range(500):
            await connect_and_reset(port)
        assert await asyncio.wait_for(ask(port, b"one"), 10) == b"one"
        assert len(connected) == 1


async def test_a_flood_of_connections_reaches_the_service_as_a_bounded_number_in_a_second(tmp_path: Path) -> None:
    async with open_relay(tmp_path) as (port, connected):
        began = time.monotonic()
        for _ in range(forwarding.BURST + 60):
            await connect_and_reset(port, b"x")
        assert await asyncio.wait_for(ask(port, b"last"), 10) == b"last", "further ones wait, and none is lost"
        assert len(connected) <= forwarding.BURST + forwarding.RATE * (connected[-1] - began) + 1


async def test_a_package_installers_connections_do_not_wait(tmp_path: Path) -> None:
    async with open_relay(tmp_path) as (port, connected):
        words = [f"{number:03}".encode() for number in range(forwarding.BURST)]
        began = time.monotonic()
        assert await asyncio.gather(*(ask(port, word) for word in words)) == words
        assert connected[-1] - began < forwarding.BURST / forwarding.RATE


async def test_silent_connections_give_way_to_new_ones(tmp_path: Path) -> None:
    async with open_relay(tmp_path) as (port, connected):
        silent = [await connect(port) for _ in range(forwarding.MAX_CONNECTIONS)]
        assert await asyncio.wait_for(ask(port, b"one"), 10) == b"one"
        with pytest.raises(ConnectionResetError):
            await silent[0][0].read()
        assert len(connected) == 1
        for _, writer in silent:
            writer.transport.abort()


async def test_a_connection_that_stays_silent_is_closed(tmp_path: Path) -> None:
    async with open_relay(tmp_path, first_bytes_s=0.1) as (port, connected):
        reader, _ = await connect(port)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)
        assert not connected


async def test_a_socket_that_does_not_listen_yet_is_kept_and_one_that_was_closed_is_removed(tmp_path: Path) -> None:
    """sshd makes the file before it listens. Without the file, the service would never be found."""
    async with open_relay(tmp_path) as (port, _):
        for name in ("000002", "000003"):
            with closing(socket.socket(socket.AF_UNIX)) as new:
                new.bind(str(tmp_path / name))
        os.utime(tmp_path / "000002", (0, time.time() - 60))
        assert await asyncio.wait_for(ask(port, b"one"), 10) == b"one"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "000003"]
