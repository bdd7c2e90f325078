"""What a running agent is told: by another process of its session, or in a file, each message once and in order."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from runner.jobd.stages.told import GOES_ON
from runner.jobd.verbs.agent import NOT_RESUMED
from tests.support.jobd import Jobd, processes_with, wait_until

pytestmark = pytest.mark.slow

WAITS = "echo at work; sleep 60"
HEARS = ["/bin/sh", "-ec", "echo heard:; cat; echo at work again; sleep 60"]
HEARS_AND_ENDS = ["/bin/sh", "-ec", "echo heard:; cat"]
MARK = "\x1e"


def tell(jobd: Jobd, number: int, text: str, argv: list[str] | None = None, process: int = 0) -> bool:
    argv = HEARS_AND_ENDS if argv is None else argv
    taken: bool = jobd.call("tell", number=number, process=process, text=text, argv=argv)["taken"]
    return taken


def wait_for_words(jobd: Jobd, words: str) -> None:
    wait_until(lambda: f"{words}\n".encode() in jobd.poll("agent")["log"])


def start_and_wait(jobd: Jobd, agent: str = WAITS, **changes: Any) -> None:
    jobd.prepare()
    jobd.start(agent, **changes)
    wait_for_words(jobd, "at work")


def test_an_agent_is_ended_and_another_process_of_its_session_gets_each_message_once(
    jobd: Jobd, tmp_path: Path
) -> None:
    mark = f"stray-of-{tmp_path}"
    slow = ["/bin/sh", "-ec", "echo begun; sleep 1; echo heard:; cat; echo at work again; sleep 60"]
    start_and_wait(jobd, f": {shlex.quote(mark)}; {WAITS}", told=2)
    assert jobd.poll("agent")["told"] == 2
    assert tell(jobd, 2, "two\n"), "it was part of the prompt"
    assert tell(jobd, 3, "three\n", slow)
    wait_for_words(jobd, "begun")
    assert not tell(jobd, 4, "four\n"), "a process that the service has not seen may not have read the message before"
    wait_for_words(jobd, "at work again")
    assert tell(jobd, 3, "three\n", slow), "a service that was killed asks again"
    assert tell(jobd, 4, "four\n", process=1)
    ended = jobd.wait("agent")
    goes_on = f"{MARK}{GOES_ON}\n"
    third = f"{goes_on}begun\nheard:\nthree\nat work again\n"
    assert ended["log"].decode() == f"at work\n{third}{goes_on}heard:\nfour\n"
    assert ended["result"]["exit_status"] == 0
    assert not ended["result"]["stopped"], "the run was not ended"
    assert ended["told"] == 4
    assert processes_with(mark) == []


def test_messages_that_come_together_are_given_together_and_in_order(jobd: Jobd) -> None:
    start_and_wait(jobd, "trap 'sleep 1; exit 1' INT; echo at work; while :; do sleep 0.1; done", stop_grace_s=10)
    assert [tell(jobd, number, f"message {number}\n") for number in (1, 2, 3)] == [True] * 3
    said = jobd.wait("agent")["log"].decode()
    assert said.endswith("heard:\nmessage 1\n\nmessage 2\n\nmessage 3\n")
    assert said.count("heard:") == 1


@pytest.mark.on_disk
def test_a_message_that_comes_as_the_agent_ends_by_itself_resumes_its_session(jobd: Jobd, tmp_path: Path) -> None:
    """The agent ends only when the message is there: it is not interrupted, because it ignores that."""
    gate = tmp_path / "gate"
    start_and_wait(jobd, f"trap '' INT; echo at work; until [ -e {gate} ]; do sleep 0.05; done", stop_grace_s=20)
    assert tell(jobd, 1, "Not yet.\n")
    gate.touch()
    ended = jobd.wait("agent")
    assert ended["log"].decode().endswith("heard:\nNot yet.\n")
    assert ended["told"] == 1


def test_a_stop_has_priority_and_the_message_is_not_given(jobd: Jobd) -> None:
    start_and_wait(jobd, "trap '' INT; echo at work; while :; do sleep 0.1; done", stop_grace_s=2)
    assert tell(jobd, 1, "one\n")
    jobd.call("stop")
    ended = jobd.wait("agent")
    assert b"heard" not in ended["log"]
    assert ended["told"] == 0


def test_all_processes_of_a_session_share_one_limit_of_time(jobd: Jobd) -> None:
    start_and_wait(jobd, timeout_s=3)
    assert tell(jobd, 1, "one\n", HEARS)
    ended = jobd.wait("agent")
    assert ended["result"]["timed_out"]
    assert 2.9 < ended["result"]["run_s"] < 10


def test_what_is_hidden_from_an_agent_is_hidden_from_the_next_process_of_its_session(jobd: Jobd) -> None:
    start_and_wait(jobd, f"mkdir .pi; {WAITS}", hidden=[".pi"])
    assert tell(jobd, 1, "one\n", ["/bin/sh", "-ec", "ls -A"])
    assert ".pi" not in jobd.wait("agent")["log"].decode().split(GOES_ON)[1].split()


READS = 'echo at work; until grep -q two "$PTQ_TOLD_FILE" 2>/dev/null; do sleep 0.05; done; cat "$PTQ_TOLD_FILE"'


def test_an_agent_without_sessions_reads_all_messages_in_a_file_that_is_in_place_of_any_link(
    jobd: Jobd, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.write_text("of the host")
    start_and_wait(jobd, f'ln -s {own} "$PTQ_TOLD_FILE"; {READS}')
    assert tell(jobd, 1, "one\n", [])
    assert own.read_text() == "of the host"
    assert (jobd.root / "told.md").read_text() == "one\n"
    assert jobd.poll("agent")["told"] == 1
    assert tell(jobd, 1, "one\n", [])
    assert tell(jobd, 2, "two\n", [])
    ended = jobd.wait("agent")
    assert ended["log"] == b"at work\none\n\ntwo\n"
    assert ended["told"] == 2


def test_what_the_agent_did_counts_if_its_session_cannot_be_resumed(jobd: Jobd) -> None:
    jobd.prepare()
    assert not tell(jobd, 1, "too early\n")
    jobd.start("echo changed > a.txt; echo at work; sleep 60")
    wait_for_words(jobd, "at work")
    assert tell(jobd, 1, "one\n", ["/no/such/program"])
    ended = jobd.wait("agent")
    assert ended["state"] == "done"
    assert ended["result"]["objection"] == NOT_RESUMED
    assert ended["told"] == 0
    assert b"/no/such/program" in ended["log"]
    assert not tell(jobd, 2, "too late\n")
    assert jobd.poll("agent")["log"] == ended["log"]


def test_a_folder_in_place_of_that_file_ends_the_run_and_what_the_agent_did_counts(jobd: Jobd) -> None:
    start_and_wait(jobd, f'echo changed > a.txt; mkdir "$PTQ_TOLD_FILE"; {WAITS}')
    assert tell(jobd, 1, "one\n")
    ended = jobd.wait("agent")
    assert (ended["state"], ended["result"]["objection"], ended["told"]) == ("done", NOT_RESUMED, 0)


def test_the_environment_is_not_tried_again_when_a_session_is_resumed(jobd: Jobd) -> None:
    jobd.prepare(smoke_test=["test -e b.txt"])
    jobd.start("sleep 1; rm b.txt; echo at work; sleep 60")
    wait_for_words(jobd, "at work")
    assert tell(jobd, 1, "one\n", ["/bin/sh", "-ec", "sleep 2; echo done"])
    ended = jobd.wait("agent")
    assert ended["log"].endswith(b"done\n")
    assert ended["result"]["objection"] is None
