"""A log that is made clean piece by piece is as clean as the whole, and no piece takes long."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from handlers.text.log_pieces import LONGEST, PIECE, cut_pieces
from handlers.text.sanitize import redact
from handlers.text.transcript import redact_log

KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq+/Zz\n" * 30 + "-----END RSA PRIVATE KEY-----"
LIVE = "first line of a live secret\nand its second one, long enough"
SECRETS = frozenset({LIVE, "hunter2hunter2"})
SECRET_TEXTS = (
    KEY,
    LIVE,
    "hunter2hunter2",
    "ghp_" + "a1" * 20,
    "ghp\\_" + "a1" * 20,
    "\\u0067hp_" + "a1" * 20,
    "Authorization:\n Bearer " + "a1" * 20,
    "https://user:password@example.org",
    "eyJ" + "a1" * 2_000 + ".eyJ" + "b2" * 2_000 + ".",
)


def clean(text: str) -> str:
    return redact_log(text, lambda part: redact(part, SECRETS))


def clean_pieces(log: str) -> str:
    pieces = [*cut_pieces(log, SECRETS, clean)]
    assert "".join(pieces) == log
    assert max(map(len, pieces), default=0) <= LONGEST
    return "".join(map(clean, pieces))


@pytest.mark.parametrize("filler", ["word \n", "x", '"\\n', "a line of some length, with a stop.\n"])
@pytest.mark.parametrize("secret", SECRET_TEXTS)
def test_a_secret_on_a_border_is_found(secret: str, filler: str) -> None:
    for shift in (0, 1, len(secret) // 2, len(secret)):
        before = (filler * PIECE)[: PIECE - shift]
        log = f"{before} {secret} {filler * 50}"
        assert clean_pieces(log) == clean(log)


CORES = (
    "a1" * 20,
    "hunter2hunter2",
    "first line of a live secret",
    "its second one",
    "MIIEpAIBAAKCAQEA7bq",
    "user:password",
)


@settings(max_examples=20)
@given(st.lists(st.sampled_from((*SECRET_TEXTS, "word ", "\n", "\\", '"', "x" * 9_000)), max_size=40))
def test_no_log_shows_more_in_pieces_than_whole(parts: list[str]) -> None:
    """Beyond the longest piece a border may be forced where secrets stand everywhere."""
    log = "".join(f"{part} " for part in parts)
    assume(len(log) <= LONGEST)
    pieces, whole = clean_pieces(log), clean(log)
    assert {core for core in CORES if pieces.count(core) > whole.count(core)} == set()


def check_pieces(log: str) -> None:
    """A secret of several lines may become one mark for each of them."""
    assert join_marks(clean_pieces(log)) == join_marks(clean(log))


def join_marks(text: str) -> str:
    return re.sub(r"\[redacted\](?:\s*\[redacted\])*", "[redacted]", text)


def test_a_header_and_its_value_on_the_next_line_stay_together() -> None:
    header = "Authorization:\n Bearer " + "a1" * 20
    check_pieces(f"{'x' * (PIECE - 50)} {header} {'x' * PIECE} {header} end")


@pytest.mark.parametrize(
    "log", ["sk-a-" * 100_000, "sk-a1" * 100_000, "\\" * 500_000, "-----BEGIN PRIVATE KEY-----\n" * 9]
)
def test_hostile_logs_are_cut_all_the_same(log: str) -> None:
    assert clean_pieces(log + "\nend\n").endswith("end\n")


def test_a_key_without_an_end_holds_up_no_more_than_a_piece() -> None:
    log = "-----BEGIN PRIVATE KEY-----\n" + "junk of a log\n" * 50_000
    assert len([*cut_pieces(log, SECRETS, clean)]) >= len(log) // LONGEST
