"""A log becomes clean while it is read: however it is cut, and wherever the service is killed, nothing of a secret is
stored, nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handlers.text.log_redactor import LONGEST, MARGIN, MAX_HELD, MAX_HELD_LINES, PIECE, LogRedactor
from handlers.text.sanitize import redact
from handlers.text.secret_forms import spell_out
from handlers.text.transcript import redact_log

KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq+/Zz\n" * 8 + "-----END RSA PRIVATE KEY-----"
LIVE = "first line of a live secret\nand its second one, long enough\nand a third one that is longer"
SECRETS = spell_out({LIVE, "hunter2hunter2", 'a "quoted" séc\nret'})
SECRET_TEXTS = {
    "key": KEY,
    "key in two colours": KEY.replace("\n", "\x1b[0m\n\x1b[1m"),
    "quoted key": KEY.replace("\n", "\n> "),
    "live": LIVE,
    "word": "hunter2hunter2",
    "coloured word": "hunter2\x1b[1mhunter2",
    "quotes": 'a "quoted" séc\nret',
    "github": "ghp_" + "a1" * 20,
    "escaped": "ghp\\_" + "a1" * 20,
    "in json": '"\\u0067hp_' + "a1" * 20 + '"',
    "header": "Authorization:\n Bearer " + "a1" * 20,
    "header on three lines": "Authorization:\n  Bearer\n " + "c3" * 12,
    "two headers": 2 * ("\nAuthorization:\n  Bearer\n " + "c3" * 12),
    "netrc": "machine git.example.org\n  login octo\n  password pa55word-pa55word",
    "netrc without a login": "machine git.example.org\npassword\npa55word-pa55word",
    "address": "https://user:pa55word@example.org",
    "model": "sk-ant-" + "b2" * 20,
    "web token": "eyJ" + "a1" * 20 + ".eyJ" + "b2" * 20 + ".",
    "event": json.dumps({"type": "text", "text": f"it is {LIVE} and {KEY}"}),
    "event with a header": json.dumps({"headers": {"Authorization": "Bearer " + "a1" * 20}}),
}
PARTS = ("MIIEpAIB", "first line", "second one", "third one", "hunter2", "quoted", "a1a1", "c3c3", "pa55word", "b2b2")
"""What no clean log holds of them."""


def clean(text: str) -> str:
    return redact_log(text, lambda part: redact(part, SECRETS))


@dataclass
class Store:
    """A file with the clean log, and a row that says from which raw offset to go on, and how long the file was then."""

    text: str = ""
    offset: int = 0
    length: int = 0
    seen: str = ""
    """All that was ever in the file."""


@dataclass
class Reader:
    """Reads a raw log into a store, as a service does that may be killed between any two writes."""

    store: Store
    has_events: bool = False
    redactor: LogRedactor = field(init=False)

    def __post_init__(self) -> None:
        self.redactor = LogRedactor(SECRETS, has_events=self.has_events, by_line=True, start=self.store.offset)
        self.read_to = self.store.offset
        self.store.text = self.store.text[: self.store.length]

    def read(self, log: bytes, size: int, *, ends: bool = False) -> Iterator[str]:
        """The next bytes. A kill may come at each yield."""
        chunk = log[self.read_to : self.read_to + size]
        self.read_to += len(chunk)
        found = self.redactor.feed(chunk) + (self.redactor.finish() if ends else [])
        yield "read"
        for one in found:
            self.store.text += one.text
            self.store.seen += one.text
            yield "written"
        self.store.offset, self.store.length = self.redactor.offset, len(self.store.text)
        yield "noted"


def read_all(log: bytes, sizes: Sequence[int], *, has_events: bool = False, kill_at: int = -1) -> Store:
    """The store after the whole log has come in pieces of these sizes; the service is killed once, at such a moment."""
    store, moment = Store(), 0
    reader, pieces = Reader(store, has_events), iter(sizes)
    while True:
        size = next(pieces, len(log) + 1)
        ends = reader.read_to + size > len(log)
        for _ in reader.read(log, size, ends=ends):
            moment += 1
            if moment == kill_at:
                reader = Reader(store, has_events)
                break
        else:
            if ends:
                return store


def find_parts(text: str) -> list[str]:
    return [part for part in PARTS if part in text]


@pytest.mark.parametrize("has_events", [False, True])
@pytest.mark.parametrize("name", SECRET_TEXTS)
def test_a_secret_that_is_split_anywhere_is_not_written(name: str, has_events: bool) -> None:
    log = f"before\n{SECRET_TEXTS[name]}\nafter\n".encode()
    whole = read_all(log, [], has_events=has_events)
    assert find_parts(whole.text) == []
    assert "[redacted]" in whole.text
    assert whole.text.startswith("before\n")
    assert whole.text.endswith("\nafter\n")
    for place in range(1, len(log), 1 + len(log) // 150):
        store = read_all(log, [place], has_events=has_events)
        assert (store.text, store.seen, store.offset) == (whole.text, whole.text, len(log))
    assert read_all(log, [3] * len(log), has_events=has_events).text == whole.text


@pytest.mark.parametrize("has_events", [False, True])
@pytest.mark.parametrize("name", SECRET_TEXTS)
def test_a_kill_between_two_writes_loses_nothing_repeats_nothing_and_shows_nothing(name: str, has_events: bool) -> None:
    log = f"one\ntwo\n{SECRET_TEXTS[name]}\nthree\n{SECRET_TEXTS[name]}\nfour".encode()
    whole = read_all(log, [], has_events=has_events)
    sizes = [23] * (len(log) // 23 + 1)
    moments = 2 * len(sizes) + log.count(b"\n")
    for kill_at in range(1, moments, 1 + moments // 30):
        store = read_all(log, sizes, has_events=has_events, kill_at=kill_at)
        assert (store.text, store.offset) == (whole.text, len(log)), kill_at
        assert find_parts(store.seen) == []


SHORT = "one line of it\ntwo\nthree"
"""A secret with lines that are too short to be found alone."""


def test_a_reader_that_resumes_where_it_stopped_to_read_would_write_half_a_secret() -> None:
    """Why a reader resumes at the redactor's offset, and not where it stopped to read."""
    log = f"before\n{SHORT}\nafter\n".encode()
    place = log.index(b"two")
    first, wrong = (LogRedactor([SHORT], by_line=True) for _ in range(2))
    assert [one.text for one in first.feed(log[:place])] == ["before\n"]
    assert [one.text for one in wrong.feed(log[place:])] == ["two\n", "three\n", "after\n"]
    again = LogRedactor([SHORT], by_line=True, start=first.offset)
    assert [one.text for one in again.feed(log[first.offset :])] == ["[redacted]\n", "after\n"]


LINES = st.sampled_from(
    (*SECRET_TEXTS.values(), "word", "", "é\x1b[1m", "Authorization:", "-----BEGIN PRIVATE KEY-----")
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(LINES, max_size=6).map("\n".join),
    st.lists(st.integers(1, 200), max_size=20),
    st.integers(0, 100),
    st.booleans(),
)
@example(f"{KEY}\n{KEY}", [10] * 60, 30, False)
def test_any_log_in_any_pieces_with_any_kill_is_stored_alike(
    log: str, sizes: list[int], kill_at: int, has_events: bool
) -> None:
    raw = log.encode()
    store, whole = (
        read_all(raw, sizes, has_events=has_events, kill_at=kill_at),
        read_all(raw, [], has_events=has_events),
    )
    assert (store.text, store.offset) == (whole.text, len(raw))
    assert store.seen.endswith(store.text) or find_parts(store.seen) == find_parts(store.text)


def clean_long(log: str, *, has_events: bool = False, by_line: bool = False) -> str:
    redactor = LogRedactor(SECRETS, has_events=has_events, by_line=by_line)
    found, raw = [], log.encode()
    for start in range(0, len(raw), 50_000):
        found += redactor.feed(raw[start : start + 50_000])
    found += redactor.finish()
    assert max((len(one.text) for one in found), default=0) <= LONGEST + MARGIN + MAX_HELD
    assert redactor.offset == len(raw)
    return "".join(one.text for one in found)


@pytest.mark.slow
@pytest.mark.parametrize(("filler", "by_line"), [("word \n", True), ("x", False), ("x", True), ('"\\n', False)])
def test_a_secret_where_a_long_text_is_cut_is_found(filler: str, by_line: bool) -> None:
    for name, secret in SECRET_TEXTS.items():
        for shift in (1, len(secret) // 2):
            before = (filler * PIECE)[: PIECE - shift]
            after = filler * (LONGEST // len(filler) if len(filler) < 5 else 100)
            log = f"{before} {secret} {after}"
            assert find_parts(clean_long(log, by_line=by_line)) == [], (name, shift)


@pytest.mark.slow
@pytest.mark.parametrize(
    "log",
    ["sk-a-" * 100_000, "sk-a1" * 100_000, "\\" * 500_000, "-----BEGIN PRIVATE KEY-----\n" * 9, "é" * 300_000],
)
def test_hostile_logs_are_cut_all_the_same(log: str) -> None:
    assert clean_long(log + "\nend\n").endswith("end\n")


@pytest.mark.slow
def test_a_key_without_an_end_is_held_no_longer_than_a_key_is() -> None:
    redactor = LogRedactor(SECRETS, by_line=True)
    log = b"-----BEGIN PRIVATE KEY-----\n" + b"junk of a log\n" * 50_000
    redactor.feed(log)
    assert redactor.offset > len(log) - MAX_HELD
    after = KEY.splitlines()[0]
    found = redactor.feed(f"{after}\n".encode())
    found += redactor.feed(KEY.removeprefix(after)[1:].encode()) + redactor.finish()
    assert find_parts("".join(one.text for one in found)) == []


@pytest.mark.parametrize("has_events", [False, True])
@pytest.mark.parametrize("size", [4_096, 10**6])
@pytest.mark.parametrize("before", [MAX_HELD - 100, MAX_HELD, LONGEST - 100, LONGEST + MARGIN, 2 * LONGEST])
@pytest.mark.parametrize("name", ["key", "live", "header on three lines"])
def test_a_secret_of_several_lines_behind_a_long_text_is_found(
    name: str, before: int, size: int, has_events: bool
) -> None:
    log = f"first\n{'x' * before} {SECRET_TEXTS[name]}\nthe end\n".encode()
    shown = read_all(log, [size] * (len(log) // size), has_events=has_events).text
    assert find_parts(shown) == []
    assert (shown[:7], shown[-9:]) == ("first\nx", "\nthe end\n")


@pytest.mark.slow
@pytest.mark.parametrize("line", ["-----BEGIN PRIVATE KEY-----", "y" * (LONGEST - 40) + " -----BEGIN PRIVATE KEY-----"])
def test_keys_that_begin_again_and_again_are_not_held_together(line: str) -> None:
    redactor, size = LogRedactor(SECRETS), 0
    for _ in range(20):
        size += len(line) + 1
        redactor.feed(f"{line}\n".encode())
        assert size - redactor.offset <= 2 * (LONGEST + MARGIN) + MAX_HELD


def test_many_lines_with_a_secret_each_are_as_clean_as_one() -> None:
    lines = [f"{number} {secret}" for number, secret in enumerate(SECRET_TEXTS.values())] * 20
    assert find_parts(clean_long("\n".join(lines))) == []
    assert find_parts(clean_long("\n".join(lines), has_events=True, by_line=True)) == []


def test_an_event_is_judged_by_what_it_means_and_stays_one() -> None:
    event = {"type": "text", "text": f"\x1b[1m{LIVE}\x1b[0m", "headers": {"Authorization": "Bearer " + "a1" * 20}}
    (one,) = LogRedactor(SECRETS, has_events=True).feed(f"{json.dumps(event)}\n".encode())
    assert one.is_event
    assert json.loads(one.text) == {
        "type": "text",
        "text": "[redacted]",
        "headers": {"Authorization": "Bearer [redacted]"},
    }


def test_a_key_that_is_printed_between_events_is_not_shown_and_no_event_is_lost() -> None:
    events = [json.dumps({"type": "tick", "number": number}) for number in range(KEY.count("\n"))]
    lines = [line for pair in zip(KEY.split("\n"), events, strict=False) for line in pair]
    log = "\n".join(["before", *lines, KEY.splitlines()[-1], "after", ""]).encode()
    for size in (1, 30, len(log)):
        whole = read_all(log, [size] * len(log), has_events=True)
        assert whole.text == "\n".join(["before", "[redacted]", *events, "after", ""])
        assert whole.offset == len(log)
    found = LogRedactor(SECRETS, has_events=True).feed(log)
    assert [one.end for one in found] == sorted({one.end for one in found}), "a live log goes on after any of them"
    for kill_at in range(1, 60):
        store = read_all(log, [23] * len(log), has_events=True, kill_at=kill_at)
        assert (store.text, store.offset, find_parts(store.seen)) == (whole.text, len(log), []), kill_at


@pytest.mark.slow
@pytest.mark.parametrize(("size", "count"), [(10, 1_500), (1_000, 1_500), (20_000, 150)])
def test_events_after_a_key_without_an_end_are_held_no_longer_than_a_key_is(size: int, count: int) -> None:
    redactor, event = LogRedactor(SECRETS, has_events=True), json.dumps({"text": "y" * size}).encode() + b"\n"
    redactor.feed(b"-----BEGIN PRIVATE KEY-----\n" + event * count)
    assert redactor.offset >= len(event) * (count - 100)


def test_what_is_no_event_any_more_without_its_secret_is_text() -> None:
    head, *_, end = KEY.split("\n")
    event = json.dumps({"a": {"b": f"{head} ..."}, "c": f"... {end}"})
    (one,) = LogRedactor(SECRETS, has_events=True).feed(f"{event}\n".encode())
    assert not one.is_event
    assert one.text == '{"a": {"b": "[redacted]"}\n'


def test_a_log_that_ends_while_lines_are_held_loses_none() -> None:
    log = b"one\nAuthorization:\n  Bearer\n"
    store = read_all(log, [4, 4])
    assert (store.text, store.offset) == (log.decode(), len(log))


def test_what_is_held_on_when_too_much_was_held_is_read_again_by_the_next_reader() -> None:
    """The first key never ends; the second one begins in the line that is one too many."""
    first, second = LogRedactor(SECRETS, by_line=True), KEY.encode().split(b"\n")
    before = b"-----BEGIN PRIVATE KEY-----\n" + b"junk!\n" * MAX_HELD_LINES
    first.feed(before[: -len(b"junk!\n")] + second[0] + b"\n")
    assert first.offset == len(before) - len(b"junk!\n")
