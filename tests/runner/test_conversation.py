"""Many questions to one command: on every kind of host, and whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from runner.model.environment import Profile
from runner.model.jobd_answers import StageState
from runner.model.machines import Machine
from runner.transport.conversation import Conversation, ConversationLost
from runner.transport.host_errors import Unreachable
from runner.transport.hosts import Host, SshHost, open_host
from runner.transport.jobd_client import JobdClient
from runner.transport.listening import Stream
from tests.support.jobd import Repository
from tests.support.machines import SshServer

pytestmark = pytest.mark.slow

JOB, OTHER = secrets.token_hex(5), secrets.token_hex(5)
ON_ONE = pytest.mark.parametrize("any_machine", ["local"], indirect=True)
"""For what depends on our program and on the conversation, not on how a command begins there."""

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


@pytest.fixture
async def host(any_machine: Machine) -> AsyncIterator[Host]:
    host = open_host(any_machine)
    yield host
    await host.close()


class Watched:
    """A client of a machine on which every start of our program is written down."""

    def __init__(self, machine: Machine, host: Host, folder: Path) -> None:
        python, self._starts = folder / "python", folder / "starts"
        python.write_text(f'#!/bin/sh\necho $$ "$@" >> {self._starts}\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        self._starts.touch()
        self.client = JobdClient(replace(machine, python=str(python)), host)

    def list_starts(self, verb: str) -> list[int]:
        """The processes that were started for a verb."""
        words = [line.split() for line in self._starts.read_text().splitlines()]
        return [int(line[0]) for line in words if line[-1:] == [verb]]


@pytest.fixture
def watched(any_machine: Machine, host: Host, tmp_path: Path) -> Watched:
    return Watched(any_machine, host, tmp_path)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # It may end between opening and reading.
        return False


async def test_a_stage_that_is_asked_for_many_times_costs_one_start_on_its_machine(watched: Watched) -> None:
    await watched.client.version()
    for _ in range(20):
        assert (await watched.client.poll(JOB, "prepare")).state is StageState.ABSENT
    assert len(watched.list_starts("converse")) == 1
    assert not watched.list_starts("poll")


async def test_the_program_is_put_on_its_machine_by_whoever_asks_first(watched: Watched) -> None:
    with capture_logs() as logs:
        assert (await watched.client.poll(JOB, "prepare")).state is StageState.ABSENT
        assert (await watched.client.poll(JOB, "prepare")).state is StageState.ABSENT
    assert not [entry for entry in logs if entry["log_level"] == "warning"]
    assert len(watched.list_starts("converse")) == 2, "the first one found no program"


@pytest.mark.on_disk
@ON_ONE
async def test_whoever_waits_for_something_new_holds_up_nobody(
    watched: Watched, repository: Repository, tmp_path: Path
) -> None:
    go, client = tmp_path / "go", watched.client
    repository.commit({"a.txt": "a"})
    profile = Profile("octo/widgets", create_venv=("sh", "-c", f"echo waiting; until [ -e {go} ]; do sleep 0.05; done"))
    await client.prepare(JOB, profile.recipe(repository.url, "main"))
    async with asyncio.timeout(60):
        while not (poll := await client.poll(JOB, "prepare")).log.endswith(b"\nwaiting\n"):
            await asyncio.sleep(0.05)
    size = poll.log_size
    waiting = asyncio.create_task(client.poll(JOB, "prepare", log_offset=size, wait_s=9.0))
    for _ in range(5):
        assert (await client.poll(OTHER, "prepare")).state is StageState.ABSENT
    assert not waiting.done()
    go.touch()
    news = await waiting
    assert news.log_size > size or news.state is not StageState.RUNNING
    await client.clean(JOB)


@ON_ONE
async def test_a_program_that_is_killed_is_started_again(watched: Watched) -> None:
    await watched.client.version()
    await watched.client.poll(JOB, "prepare")
    os.kill(watched.list_starts("converse")[0], signal.SIGKILL)
    for _ in range(3):
        assert (await watched.client.poll(JOB, "prepare")).state is StageState.ABSENT
        await asyncio.sleep(0.05)
    assert len(watched.list_starts("converse")) == 2


@ON_ONE
async def test_an_operator_is_told_once_of_a_program_that_cannot_be_spoken_with(
    any_machine: Machine, host: Host, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase " $*" in *" converse") exit 3;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    client = JobdClient(replace(any_machine, python=str(python)), host)
    with capture_logs() as logs:
        for _ in range(5):
            assert (await client.poll(JOB, "prepare")).state is StageState.ABSENT
    (warning,) = (entry for entry in logs if entry["log_level"] == "warning")
    assert warning["event"] == "machine.conversation_lost"
    assert warning["reason"] == "it ended"


async def test_a_question_whose_connection_is_cut_is_asked_again(
    ssh_server: SshServer, ssh_machine: Machine, tmp_path: Path
) -> None:
    host = SshHost(ssh_machine)
    watched = Watched(ssh_machine, host, tmp_path)
    await watched.client.version()
    await watched.client.poll(JOB, "prepare")
    first = watched.list_starts("converse")[0]
    os.kill(first, signal.SIGSTOP)
    asking = asyncio.create_task(watched.client.poll(JOB, "prepare"))
    await asyncio.sleep(0.2)
    await ssh_server.cut_connections()
    assert (await asking).state is StageState.ABSENT
    os.kill(first, signal.SIGCONT)
    await until(lambda: not is_alive(first))
    await host.close()


async def test_nothing_is_left_on_a_machine_to_which_nobody_speaks_any_more(watched: Watched, host: Host) -> None:
    await watched.client.version()
    await watched.client.poll(JOB, "prepare")
    pid = watched.list_starts("converse")[0]
    assert is_alive(pid)
    await host.close()
    await until(lambda: not is_alive(pid))


def converse_with(program: str, host: Host, patience_s: float = 20.0) -> Conversation:
    """A conversation with any program."""
    return Conversation(lambda: host.begin([sys.executable, "-c", program]), patience_s)


async def test_every_question_gets_its_own_answer(host: Host) -> None:
    conversation = converse_with(ECHO, host)
    questions = [b"%d" % number * 1_000 for number in range(300)]
    assert await asyncio.gather(*map(conversation.ask, questions)) == questions


async def test_answers_may_come_in_any_order_and_among_other_words(host: Host) -> None:
    program = """if True:
        import sys
        print("Welcome!\\n7 to nobody", flush=True)
        asked = [sys.stdin.readline() for _ in range(3)]
        for line in reversed(asked):
            print(line + line, end="no answer\\n", flush=True)
        sys.stdin.read()
    """
    conversation = converse_with(program, host)
    assert await asyncio.gather(*map(conversation.ask, [b"a", b"b", b"c"])) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "program",
    [
        "import time; time.sleep(60)",
        "print('nonsense')",
        "import sys; sys.stdin.readline(); sys.exit(1)",
        "import sys\nwhile True: sys.stdout.write('x' * 65536)",
        "import sys\nwhile True: print('1', flush=True, file=sys.stderr)",
    ],
)
async def test_a_program_that_does_not_answer_is_given_up(program: str, host: Host) -> None:
    with pytest.raises(ConversationLost):
        await converse_with(program, host, patience_s=0.3).ask(b"a")


async def test_what_a_program_complains_of_holds_up_no_answer(host: Host) -> None:
    conversation = converse_with(f"import sys; sys.stderr.write('x' * 10_000_000)\n{ECHO}", host)
    assert await conversation.ask(b"a") == b"a"


async def test_after_a_silence_nobody_waits_for_another_one_at_once(host: Host, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    conversation = converse_with(f"open({str(starts)!r}, 'a').write('x'); import time; time.sleep(60)", host, 1.0)
    for _ in range(3):
        with pytest.raises(ConversationLost, match="did not answer within 1 seconds"):
            await conversation.ask(b"a")
    assert starts.read_text() == "x"


async def test_whoever_cannot_be_reached_is_tried_once_for_all_who_ask() -> None:
    tries, go = [], asyncio.Event()

    async def begin() -> Stream:
        tries.append(1)
        await go.wait()
        raise Unreachable("it is not there")

    conversation = Conversation(begin)
    asked = [asyncio.create_task(conversation.ask(b"a")) for _ in range(5)]
    gone = asked.pop()
    await asyncio.sleep(0)
    gone.cancel()
    go.set()
    assert {str(error) for error in await asyncio.gather(*asked, return_exceptions=True)} == {"it is not there"}
    assert len(tries) == 1
    with pytest.raises(Unreachable):
        await conversation.ask(b"a")
    assert len(tries) == 2, "it may be there by now"


async def test_an_error_that_nobody_waits_for_any_more_is_not_logged() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    go = asyncio.Event()

    async def begin() -> Stream:
        await go.wait()
        raise Unreachable("it is not there")

    gone = asyncio.create_task(Conversation(begin).ask(b"a"))
    await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.wait([gone])
    go.set()
    del gone
    await asyncio.sleep(0.01)
    gc.collect()
    assert complaints == []


async def test_a_program_that_cannot_be_started_is_given_up(host: Host) -> None:
    with pytest.raises(ConversationLost):
        await Conversation(lambda: host.begin(["/no/such/program"])).ask(b"a")


async def test_whoever_goes_away_before_the_answer_takes_it_from_nobody(host: Host) -> None:
    conversation = converse_with(ECHO, host)
    await conversation.ask(b"first")
    gone = asyncio.create_task(conversation.ask(b"gone"))
    await asyncio.sleep(0)
    gone.cancel()
    assert await conversation.ask(b"next") == b"next"


class Flood:
    """A machine that, once it is asked, says one thing again and again and never makes its listener wait."""

    def __init__(self, said: bytes, times: int) -> None:
        self._said, self._left = said, times
        self.reads, self.is_broken, self._asked = 0, False, asyncio.Event()

    async def read(self) -> bytes:
        await self._asked.wait()
        self.reads += 1
        return self._said if self.reads <= self._left and not self.is_broken else b""

    async def write(self, data: bytes) -> None:
        self._asked.set()

    async def end(self) -> None:
        pass

    def abort(self) -> None:
        self.is_broken = True


def converse_through(flood: Flood) -> Conversation:
    async def begin() -> Stream:
        return flood

    return Conversation(begin)


async def test_a_machine_that_says_what_nobody_asked_for_is_soon_listened_to_no_more() -> None:
    flood = Flood(b"\n" * 65_536, 32)
    with pytest.raises(ConversationLost, match="it ended"):
        await converse_through(flood).ask(b"who")
    assert (flood.reads, flood.is_broken) == (1, True)


async def test_whoever_listens_to_a_machine_lets_others_take_their_turns() -> None:
    flood, turns = Flood(b"x" * 1_000, 50), 0

    async def take_turns() -> None:
        nonlocal turns
        while not flood.is_broken:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(take_turns())
    with pytest.raises(ConversationLost, match="it ended"):
        await converse_through(flood).ask(b"who")
    await turning
    assert turns >= 50


async def test_a_few_words_that_nobody_asked_for_do_no_harm() -> None:
    flood = Flood(b"hello\n" * 100 + b"1 me\n" + b"hello\n" * 100, 1)
    assert await converse_through(flood).ask(b"who") == b"me"


async def test_whoever_asks_what_has_just_ended_need_not_wait() -> None:
    flood = Flood(b"", 0)
    await flood.write(b"")
    with pytest.raises(ConversationLost, match="it ended"):
        await converse_through(flood).ask(b"who")
