"""The streaming half of the live log: whatever a log is cut into, it reads the same, and no secret is ever shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handlers.text.live_transcript import MAX_SHOWN, LiveTranscript, Told, read_transcript
from handlers.text.log_redactor import MAX_HELD
from handlers.text.sanitize import find_open, redact
from handlers.text.transcript import Entry, EntryKind, redact_log
from runner.agents import Agent, AgentSpec, build_agent
from runner.characters import drop_colours, show_invisible

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
CLAUDE = build_agent(AgentSpec("mine", "claude"))
COMMAND = build_agent(AgentSpec("mine", "command", ("true",)))

KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEAabcdefgh\n" * 3 + "-----END RSA PRIVATE KEY-----\n"
LIVE = ("hunter2-hunter2", 'first "line"\nand a sécond\nand a third', "{\n  one: two\n}")
SECRETS = frozenset(LIVE)

TOKENS = (
    "ghp_" + "a1" * 20,
    "sk-ant-" + "b2" * 20,
    "Authorization:\n  Bearer\n " + "c3" * 12,
    "https://me:pa55word@example.org",
    *LIVE,
)
BASE64 = "MIIEowIBAAKCAQEAabcdefgh"


def say(text: str) -> str:
    return json.dumps({"type": "assistant", "message": {"id": "1", "content": [{"type": "text", "text": text}]}})


def read_whole(log: str, agent: Agent | None) -> list[tuple[str, str]]:
    """The log as a page shows it when all of it is there."""
    if agent and agent.speaks:
        return join([(str(entry.kind), entry.text) for entry in read_transcript(log.encode(), agent, SECRETS)])
    text = redact_log(drop_colours(log), lambda text: redact(text, SECRETS))
    return join([("plain", show_invisible(text))])


def join(entries: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Plain text as one entry, however many it comes in, and without empty lines: those around it are no part of it."""
    joined: list[tuple[str, str]] = []
    for kind, text in entries:
        lines = "".join(f"{line}\n" for line in text.split("\n") if line.strip()) if kind == "plain" else text
        if joined and kind == joined[-1][0] == "plain":
            joined[-1] = (kind, joined[-1][1] + lines)
        elif lines or kind != "plain":
            joined.append((kind, lines))
    return joined


def flatten(told: Sequence[Told]) -> list[tuple[str, str]]:
    return [(str(entry.kind), entry.text) for one in told for entry in one.entries]


def cut(log: bytes, places: Sequence[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(log) + 1) for place in places), len(log)]
    return [log[start:end] for start, end in pairwise(bounds)]


def follow(log: bytes, places: Sequence[int], agent: Agent | None) -> list[Told]:
    """What is told of a log that arrives in such pieces, looked at after each."""
    transcript = LiveTranscript(agent, SECRETS)
    told: list[Told] = []
    for piece in cut(log, places):
        told += transcript.feed(piece)
        assert transcript.offset >= max((one.end for one in told), default=0)
    return told + transcript.finish()


LINES = st.one_of(
    st.sampled_from(
        [
            *TOKENS, KEY, KEY[:60], KEY.replace("\n", "\n| "), *KEY.splitlines(), *LIVE[1].splitlines(),
            *("{", "  one: two", "}", "Authorization:", "authorization", "Bearer", "", "  "),
            "\x1b[1mbold\x1b[0m \u202e \x07",
            *("ghp_", "-----BEGIN CERTIFICATE-----", "caf\u00e9 \U0001f600", "[1, 2]", "{not json", "a\rb\r\n"),
            *(say("One."), say(KEY), say(LIVE[1]), say(f"x {TOKENS[0]} y"), '{"type": "brand new"}', "{}"),
        ]
    ),
    # Of controls those are left out that Python takes for space and we show: whether a line is empty is no matter here.
    st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), include_characters="\t\n\r"), max_size=20),
)  # fmt: skip
LOGS = st.lists(LINES, max_size=12).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join(lines) + "\n", "".join(lines)])
)
PLACES = st.lists(st.integers(0, 10**6), max_size=12)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(LOGS, PLACES, st.sampled_from([None, CLAUDE, COMMAND]))
@example(KEY, [*range(0, len(KEY))], None)
@example(f"{say('One.')}\n{KEY}{LIVE[1]}\n{say('Two.')}", [*range(0, 300, 3)], CLAUDE)
def test_however_a_log_is_cut_it_reads_the_same_in_the_end_and_never_shows_a_secret(
    log: str, places: list[int], agent: Agent | None
) -> None:
    encoded = log.encode(errors="replace")
    told = follow(encoded, places, agent)
    # What was told once stays, so that nothing was shown in between that is not shown of the whole.
    assert join(flatten(told)) == read_whole(encoded.decode(), agent)
    assert [one.end for one in told] == sorted(one.end for one in told)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(LOGS, PLACES, st.integers(0, 10**6), st.sampled_from([None, CLAUDE]))
def test_whoever_goes_on_from_an_offset_gets_the_rest_and_nothing_twice(
    log: str, places: list[int], which: int, agent: Agent | None
) -> None:
    encoded = log.encode(errors="replace")
    told = follow(encoded, places, agent)
    ends = [0, *(one.end for one in told if one.end < len(encoded))]
    end = ends[which % len(ends)]
    again = LiveTranscript(agent, SECRETS)
    later = [one for one in [*again.feed(encoded), *again.finish()] if one.end > end]
    assert flatten(later) == flatten([one for one in told if one.end > end])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*TOKENS, KEY]), min_size=1, max_size=3), PLACES, st.text("ab \n", max_size=20))
def test_secrets_of_many_lines_in_any_cut_are_shown_by_not_one_of_their_lines(
    secrets: list[str], places: list[int], between: str
) -> None:
    log = f"\n{between}\n".join(secrets)
    shown = "".join(text for _, text in flatten(follow(log.encode(), places, None)))
    for line in (line for secret in secrets for line in secret.splitlines() if len(line) > 15):
        if not line.casefold().startswith("authorization") and not line.startswith("https"):
            assert line not in shown


@pytest.mark.parametrize(
    "path", sorted(TRANSCRIPTS.glob("*/*.jsonl")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_what_real_agents_say_reads_the_same_line_by_line(path: Path) -> None:
    log, agent = path.read_bytes(), build_agent(AgentSpec("mine", path.parent.name))
    transcript = LiveTranscript(agent, SECRETS)
    told = [one for line in log.splitlines(keepends=True) for one in transcript.feed(line)] + transcript.finish()
    assert join(flatten(told)) == read_whole(log.decode(), agent)


def test_every_shape_that_can_go_over_lines_is_held_back() -> None:
    """Whoever adds a shape that spans lines has to teach `find_open` its beginning: each example here is cut."""
    for example_ in (*TOKENS, KEY, KEY.replace("RSA ", ""), "authorization = 'token\n" + "d4" * 10):
        lines = example_.splitlines(keepends=True)
        clean = redact(example_, SECRETS)
        assert clean != example_
        for count in range(1, len(lines)):
            head = "".join(lines[:count])
            assert find_open(head, SECRETS) < len(head), head


def test_only_whole_lines_are_told_and_each_at_once() -> None:
    transcript = LiveTranscript(None, SECRETS)
    assert transcript.feed(b"one\ntw") == [Told(4, (Entry(EntryKind.PLAIN, "one\n"),))]
    assert transcript.feed(b"o") == []
    assert transcript.offset == 4
    assert flatten(transcript.feed(b"\n\n")) == [("plain", "two\n"), ("plain", "\n")]
    assert (transcript.offset, transcript.finish()) == (9, [])


def test_what_could_be_a_key_is_held_back_until_it_is_one_or_the_log_ends() -> None:
    transcript = LiveTranscript(None, SECRETS)
    head, *body = KEY.splitlines(keepends=True)
    assert transcript.feed(f"before\n{head}".encode())[0].end == 7
    for line in body[:-1]:
        assert transcript.feed(line.encode()) == []
    assert transcript.offset == 7
    assert flatten(transcript.feed(body[-1].encode())) == [("plain", "[redacted]\n")]
    assert transcript.feed(head.encode() + body[0].encode()) == []
    assert flatten(transcript.finish()) == [("plain", "[redacted]\n")]


def test_what_begins_like_a_key_and_never_ends_is_told_after_a_while_without_its_secret() -> None:
    transcript = LiveTranscript(None, SECRETS)
    told = transcript.feed(KEY.splitlines()[0].encode() + b"\n" + BASE64.encode() + b"\n" + b"prose!\n" * 1100)
    assert flatten(told)[0][1].startswith("[redacted]\nprose!\n")
    long = LiveTranscript(None, SECRETS)
    lines = [b"-----BEGIN PRIVATE KEY-----\n", *[b"! " * 1000 + b"\n"] * (MAX_HELD // 2000), KEY.encode()]
    shown = "".join(text for line in lines for _, text in flatten(long.feed(line)))
    assert BASE64 not in shown
    assert shown.endswith("[redacted]\n")


@pytest.mark.slow
def test_a_line_without_an_end_is_told_in_pieces() -> None:
    transcript = LiveTranscript(None, SECRETS)
    told = [one for _ in range(2) for one in transcript.feed(b"x" * 1_000_000)]
    assert transcript.offset > 1_800_000
    told += transcript.feed(b"x\nafter\n")
    shown = "".join(text for _, text in flatten(told))
    assert shown.count("x") > 1_950_000
    assert shown.endswith("x\nafter\n")
    assert transcript.offset == 2_000_008


def test_of_a_long_entry_the_middle_is_left_out() -> None:
    ((_, text),) = flatten(LiveTranscript(None, SECRETS).feed(b"x" * (MAX_SHOWN + 1_000) + b"\n"))
    assert len(text) < MAX_SHOWN + 100


@pytest.mark.slow
def test_of_a_log_that_is_not_read_from_its_beginning_nothing_is_told_that_may_be_half_a_secret() -> None:
    secret = "".join(f"{number:04}-" for number in range(400)) + "\nits second line"
    log = (secret + "\n" + "x" * 78 + "\n" + f"{'y' * 63}\n" * (MAX_HELD // 32)).encode()
    for start in range(1, len(secret), 197):
        transcript = LiveTranscript(None, [secret], start)
        told = transcript.feed(log[start:])
        shown = "".join(text for _, text in flatten(told))
        assert "second" not in shown
        assert "0399-" not in shown
        assert shown.endswith("yy\n")
        assert told[-1].end == len(log)
