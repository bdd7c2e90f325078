"""Answers of a machine that lies: every text and number is bounded, and little room is taken to find that out."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
import tracemalloc
from typing import Any

import pytest

from runner import bounded_json
from runner.aside import run_aside
from runner.bounded_json import parse_bounded
from runner.model.completed import Completed
from runner.model.jobd_answers import SAYS, JobdError, Worklog, parse_answer, parse_poll
from runner.model.machines import Machine
from runner.transport.jobd_client import JobdClient

JOB, HERE = "a" * 10, Machine("here", "/srv", kind="local", python=sys.executable)
POLL: dict[str, Any] = {
    **{"state": "done", "error": None, "message": None, "result": {}, "log": base64.b64encode(b"x").decode()},
    **{"log_size": 1, "phase": "", "boot_id": "b"},
}
LONG = "@" * 1_000_000


class Liar:
    """A host whose machine answers one thing to everything."""

    def __init__(self, **answer: Any) -> None:
        self.answer = json.dumps({"ok": True, **answer}).encode()

    async def run(self, argv: list[str], *, stdin: bytes = b"", **limits: Any) -> Completed:
        return Completed(0, self.answer, b"")

    async def begin(self, argv: list[str]) -> Any:
        raise OSError

    async def listen(self, path: str, accept: Any) -> Any:
        raise AssertionError(path)


def lie(**answer: Any) -> JobdClient:
    return JobdClient(HERE, Liar(**answer))  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "limit"), [("error", 100), ("message", 8_000), ("phase", 100), ("boot_id", 100)])
def test_every_text_of_an_answer_about_a_stage_is_cut_and_can_be_stored(field: str, limit: int) -> None:
    said = getattr(parse_poll(POLL | {field: "@\0\ud800" * 500_000}), field)
    assert said.removeprefix(SAYS) == ("@\ufffd?" * limit)[:limit]
    assert not getattr(parse_poll(POLL | {field: ["@" * 10]}), field), "what is no text counts as none"


def test_a_worklog_is_cut_and_can_be_stored() -> None:
    told = {"mark": "@" * 1_000, "text": "@\0\ud800" * 500_000, "is_cut": "yes"}
    assert parse_poll(POLL | {"worklog": told}).worklog == Worklog("@" * 100, ("@\ufffd?" * 40_000)[:100_000], False)


@pytest.mark.parametrize("told", [None, "# Look", ["# Look"], 7])
def test_what_is_no_worklog_counts_as_none(told: Any) -> None:
    assert parse_poll(POLL | {"worklog": told}).worklog is None


def test_the_words_of_a_machine_say_whose_they_are() -> None:
    assert parse_poll(POLL | {"message": "All checks passed."}).message == "the machine says: All checks passed."
    refusal = Completed(0, b'{"ok": false, "error": "busy", "message": "Merge at once."}', b"")
    crash = Completed(1, b"", b"Traceback\nMerge at once.")
    for answer, words in (
        (refusal, "the machine says: Merge at once."),
        (crash, "the machine-side program failed; the machine says: Merge at once."),
    ):
        with pytest.raises(JobdError) as raised:
            parse_answer(answer)
        assert raised.value.message == words


@pytest.mark.parametrize("told", [6.0, -1, True, 10**30, "6"])
def test_what_is_no_number_of_bytes_makes_no_sense(told: Any) -> None:
    with pytest.raises(JobdError, match="unexpected answer"):
        parse_poll(POLL | {"log_size": told})


@pytest.mark.slow
async def test_nothing_else_that_a_machine_says_of_itself_is_longer_than_people_read() -> None:
    version = await lie(python=LONG, git=LONG).version()
    assert (len(version.python), len(version.git or "")) == (200, 200)
    assert (await lie(python=[LONG], git=7).version()).python == ""
    found = await lie(words=LONG, way=LONG, open=[LONG] * 30).capabilities()
    assert (len(found.words), len(found.way)) == (8_000, 8_000)
    assert [len(clause) for clause in found.open] == [8_000] * 20
    assert (await lie(open=7).capabilities()).open == []
    assert await lie(jobs=[{"id": LONG}, {"id": ["a" * 10]}, {"id": JOB}]).list_jobs() == (JOB,)
    gpu = {"vendor": "nvidia", "id": "GPU-0", "files": [], "name": LONG, "driver": LONG}
    inventory = await lie(gpus=[gpu], gpu_trouble=LONG, free_bytes=1, total_bytes=1).check()
    assert [len(text) for text in (inventory.gpus[0].name, inventory.gpu_trouble or "")] == [100, 400]
    programs = await lie(now=1.5, programs={"git": LONG, "uv": [LONG]}).find_programs(["git"], ["uv"])
    assert {name: len(said or "") for name, said in programs.versions.items()} == {"git": 8_000, "uv": 0}


@pytest.mark.parametrize("path", [None, 7, "", "/" * 108, LONG])
async def test_a_socket_at_no_possible_path_is_not_listened_at(path: Any) -> None:
    with pytest.raises(JobdError, match="named no socket"):
        await lie(path=path).listen(JOB, lambda stream: asyncio.sleep(0))


@pytest.mark.parametrize("alive", [None, -1, 1.0, True, "1", 10**30])
async def test_what_is_no_number_of_living_processes_is_none(alive: Any) -> None:
    with pytest.raises(JobdError, match="still alive"):
        await lie(alive=alive).kill(JOB)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1" * 5_000])
def test_numbers_that_are_no_json_or_have_no_end_are_no_answer(word: str) -> None:
    with pytest.raises(JobdError, match="exit status 0"):
        parse_answer(Completed(0, b'{"ok": true, "now": %b}' % word.encode(), b""))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["[],", '{"":'])
def test_an_answer_of_very_many_parts_is_not_even_parsed(part: str) -> None:
    body = b'{"ok": true, "jobs": [' + part.encode() * 201_000
    body += b"0" + b"}" * (201_000 if part.startswith('{"') else 0) + b"]}"
    tracemalloc.start()
    with pytest.raises(JobdError, match="exit status 0"):
        parse_answer(Completed(0, body, b""))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(body) + 1_000_000


@pytest.mark.parametrize("noise", [b"\n" * 1_000_000, b"Welcome!\r\n", b""])
def test_lines_before_the_answer_take_no_room(noise: bytes) -> None:
    tracemalloc.start()
    assert parse_answer(Completed(0, noise + b'{"ok": true}\n', b"")) == {"ok": True}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(noise) + 1_000_000


def test_what_a_long_text_holds_is_not_counted() -> None:
    answer = {"ok": True, "patch": '[{,"\\' * 300_000}
    assert parse_answer(Completed(0, json.dumps(answer).encode(), b"")) == answer


class Watched(bytes):
    """An answer that knows which threads read it."""

    readers: set[int]

    def rstrip(self, *words: Any) -> bytes:
        self.readers = {threading.get_ident()}
        return super().rstrip(*words)


class Talker(Liar):
    """A host that notes how long an answer may be."""

    def __init__(self, text: str) -> None:
        super().__init__(patch=text)
        self.watched, self.limits = Watched(self.answer), list[int]()

    async def run(self, argv: list[str], *, stdin: bytes = b"", **limits: Any) -> Completed:
        self.limits.append(limits["max_output_bytes"])
        return Completed(0, self.watched, b"")


@pytest.mark.parametrize(("size", "aside"), [(10, False), (200_000, True)])
async def test_a_long_answer_is_read_in_another_thread(size: int, *, aside: bool) -> None:
    talker = Talker("x" * size)
    answer = await JobdClient(HERE, talker).result(JOB)  # type: ignore[arg-type]
    assert len(answer["patch"]) == size
    assert (talker.watched.readers != {threading.get_ident()}) is aside
    assert (await run_aside(size, threading.get_ident) != threading.get_ident()) is aside


class Lacking(Talker):
    """A host that has no program of ours, whatever is installed there."""

    async def run(self, argv: list[str], *, stdin: bytes = b"", **limits: Any) -> Completed:
        installed = await super().run(argv, stdin=stdin, **limits)
        return installed if "-c" in argv else Completed(2, b"", b"can't open file")


async def test_what_an_installation_says_is_bounded_and_read_in_another_thread() -> None:
    lacking = Lacking("x" * 200_000)
    with pytest.raises(JobdError):
        await JobdClient(HERE, lacking).call("version")  # type: ignore[arg-type]
    assert lacking.limits == [4_000_000] * 3
    assert lacking.watched.readers != {threading.get_ident()}


async def test_a_result_may_be_as_long_as_its_repository_allows_and_nothing_else_is_longer() -> None:
    talker = Talker("")
    client = JobdClient(HERE, talker)  # type: ignore[arg-type]
    await client.result(JOB, 5_000)
    await client.result(JOB, 10**10)
    await client.call("clean", job_id=JOB)
    assert talker.limits == [5_000, 130_000_000, 4_000_000]


@pytest.mark.parametrize("text", [b"1" * 3_000_000, b" " * 3_000_000])
def test_what_stands_between_the_parts_of_an_answer_is_read_in_short_pieces(text: bytes) -> None:
    assert len(bounded_json._OUTSIDE.findall(text)) > 40, "no other thread runs during one"


@pytest.mark.parametrize("text", [b"a" * 3_000_000, b"\\\\" * 1_500_000, b"a\\n" * 1_000_000, b"\\u0001" * 500_000])
def test_a_long_text_in_an_answer_is_read_in_short_pieces_and_is_one_part(text: bytes) -> None:
    assert max(found.end() - found.start() for found in bounded_json._INSIDE.finditer(text)) < 2_000_000
    assert len(parse_bounded(b'["' + text + b'"]')[0]) > 400_000


@pytest.mark.slow
@pytest.mark.parametrize("unit", [b"[],", b"{},", b'"",', b'"\\"[{,",', b"1,"])
def test_the_parts_of_an_answer_are_counted_and_what_texts_hold_is_not(unit: bytes) -> None:
    few, many = (b"[" + unit * number + b"1]" for number in (60_000, 200_001))
    assert len(parse_bounded(few)) == 60_001
    with pytest.raises(ValueError, match="too many parts"):
        parse_bounded(many)


def test_an_integer_of_an_answer_may_have_40_digits_and_longer_ones_are_never_converted() -> None:
    assert parse_bounded(b"[18446744073709551615, -%s]" % (b"9" * 40)) == [2**64 - 1, 1 - 10**40]
    for digits in (b"1" * 41, b"-" + b"1" * 41, b"9" * 4_300):
        with pytest.raises(ValueError, match="too many digits"):
            parse_bounded(b'{"ok": true, "a": [' + digits + b"]}")
