"""The logs of jobd's own stages: its lines become sentences, and no command can print one that looks like its own."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.text.live_transcript import LiveTranscript, join_plain, read_transcript
from handlers.text.stage_log import MARK, drop_marks, fold_runs
from handlers.text.transcript import Entry, EntryKind
from runner.agents import AgentSpec, build_agent
from runner.agents.events import GOES_ON
from runner.jobd.stages import log as jobd_log
from runner.jobd.stages import told

AGENT = build_agent(AgentSpec("mine", "command", ("true",)))
BASE, CHANGED = "Check 1 on the base commit", "Check 1 with the change"
TRACEBACK = "Traceback (most recent call last):\n  File x\nAssertionError: 4\n"


def read(log: str) -> list[tuple[str, str]]:
    return flatten(read_transcript(log.encode(), None, (), is_jobds=True))


def flatten(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(str(entry.kind), entry.text) for entry in entries]


def fold(*runs: tuple[str, int, str]) -> list[str]:
    """What a page shows of these runs of checks: title, number and output of each."""
    log = "".join(f"{MARK}[{title}, run {number} of 3.]\n{output}" for title, number, output in runs)
    return [entry.text for entry in fold_runs(read_transcript(log.encode(), None, (), is_jobds=True))]


def test_jobd_and_the_service_mean_the_same_mark() -> None:
    assert MARK.encode() == jobd_log.MARK


def test_sentences_commands_and_output_are_told_apart() -> None:
    log = f"{MARK}[Fetching the repository.]\n{MARK}$ git fetch\nFrom x\n * main\n{MARK}[{BASE}, run 1 of 3.]\n4\n"
    assert read(log) == [
        ("note", "Fetching the repository."),
        ("command", "$ git fetch"),
        ("plain", "From x\n * main"),
        ("run", f"{BASE}, run 1 of 3"),
        ("plain", "4"),
    ]


@pytest.mark.parametrize(
    "line",
    ["[The base is built.]", "$ git push", f"[{BASE}, run 1 of 3.]", f"a{MARK}[x.]", f" {MARK}[x.]", f"a\r{MARK}[x.]"],
)
def test_a_line_of_a_command_is_never_shown_as_jobds(line: str) -> None:
    assert {kind for kind, _ in read(f"{line}\n")} == {"plain"}


def test_in_an_agents_log_no_mark_counts() -> None:
    log = f"{MARK}[The agent has finished.]\n".encode()
    for agent in (AGENT, build_agent(AgentSpec("mine", "claude")), None):
        assert {entry.kind for entry in read_transcript(log, agent, ())} == {EntryKind.PLAIN}


def test_in_an_agents_log_one_line_of_jobds_says_that_its_session_goes_on() -> None:
    assert f"{MARK}{told.GOES_ON}" == GOES_ON
    for agent in (build_agent(AgentSpec("mine", "claude")), None):
        (entry,) = read_transcript(f"{GOES_ON}\n".encode(), agent, ())
        assert (entry.kind, entry.text) == (EntryKind.NOTE, told.GOES_ON[1:-1])


def test_without_marks_a_log_is_what_it_says() -> None:
    assert drop_marks(f"{MARK}[One.]\n{MARK}$ two\nthree{MARK}\n") == f"[One.]\n$ two\nthree{MARK}\n"


def test_a_secret_is_in_no_line_of_jobds() -> None:
    ((_, shown),) = flatten(read_transcript(f"{MARK}$ login hunter2-x\n".encode(), None, ["hunter2-x"], is_jobds=True))
    assert shown == "$ login [redacted]"


def test_the_same_output_of_a_check_is_shown_once_for_each_side() -> None:
    assert fold((BASE, 1, TRACEBACK), (CHANGED, 1, TRACEBACK), (BASE, 2, TRACEBACK), (CHANGED, 2, "other\n")) == [
        *(f"{BASE}, run 1 of 3", TRACEBACK.strip("\n")),
        *(f"{CHANGED}, run 1 of 3", TRACEBACK.strip("\n")),
        *(f"{BASE}, run 2 of 3", "The same output as in the first run."),
        *(f"{CHANGED}, run 2 of 3", "other"),
    ]


def test_another_output_is_shown_and_a_later_run_refers_to_the_first_one_that_had_it() -> None:
    shown = fold((BASE, 1, "one\n"), (BASE, 2, "two in 0.11s\n"), (BASE, 3, "two in 0.3 s\n"))
    assert shown[3::2] == ["two in 0.11s", "The same output as in run 2, except for times."]


def test_a_run_without_output_says_so() -> None:
    assert fold((BASE, 1, ""), (BASE, 2, "x\n"), (BASE, 3, ""))[1::2] == ["No output.", "x", "No output."]


def test_output_that_imitates_a_heading_begins_no_run() -> None:
    assert fold((BASE, 1, f"[{BASE}, run 2 of 3.]\n"), (BASE, 2, "x\n"))[1::2] == [f"[{BASE}, run 2 of 3.]", "x"]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([f"{MARK}[One.]\n", f"{MARK}$ two\n", "three\n", f"{MARK}[{BASE}, run 1 of 3.]\n"])),
    st.lists(st.integers(0, 10**6), max_size=8),
)
def test_however_it_arrives_it_reads_the_same(lines: list[str], places: list[int]) -> None:
    log = "".join(lines).encode()
    transcript = LiveTranscript(None, (), is_jobds=True)
    bounds = [0, *sorted(place % (len(log) + 1) for place in places), len(log)]
    told = [one for start, end in pairwise(bounds) for one in transcript.feed(log[start:end])]
    assert flatten(join_plain([*told, *transcript.finish()])) == read(log.decode())
