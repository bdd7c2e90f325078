from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handlers.cases.casebook import Reply
from handlers.commands.table import Command, parse_commands
from handlers.pulls.note import (
    MIN_LETTERS,
    NOTE_EXAMPLE,
    NoteText,
    find_digest_fault,
    find_note_fault,
    matches_digest,
    parse_note,
)
from handlers.pulls.pulls import find_fault
from handlers.text.voice import NOTE_PLACEHOLDER
from tests.support.cpu_time import takes_at_most
from tests.support.github_markdown import render_github
from tests.support.jobs import NOON
from tests.support.site import make_report

DIGEST = "3f9c21d07ab4" + "0" * 52
NOTE = "The loop ended one chunk early, so the tail was lost. It now runs to the end, also for empty input."
REPORT = (
    "fix staged\n\n## Summary\nThe iterator stops before the final partial chunk because the range excludes it.\n\n"
    "## Root cause\nAn early end. `range(0, n - size + 1)` skips the tail.\n"
)


NAMES = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def fault(note: str) -> str:
    found = find_note_fault(note, [REPORT, "looked, found, fixed"], DIGEST[:12])
    return found.reply if found else ""


@pytest.mark.parametrize(
    ("argument", "body", "expected"),
    [
        ("", "", NoteText(None, "")),
        ("3f9c21d07ab4", NOTE, NoteText("3f9c21d07ab4", NOTE)),
        ("`3F9C21D07AB4`", NOTE, NoteText("3f9c21d07ab4", NOTE)),
        (DIGEST, "", NoteText(DIGEST, "")),
        ("3f9c21 because", NOTE, NoteText("3f9c21", f"because\n\n{NOTE}")),
        ("It is right.", "", NoteText(None, "It is right.")),
        ("facade classes are gone", "", NoteText(None, "facade classes are gone")),
        ("12345 rows", "", NoteText(None, "12345 rows")),
        ("", "> quote\n\n```\ncode\n```", NoteText(None, "> quote\n\n```\ncode\n```")),
        ('3f9c21d07ab4 --title "Keep it"', NOTE, NoteText("3f9c21d07ab4", NOTE, "Keep it")),
        ('--title "Keep it" 3f9c21d07ab4', NOTE, NoteText("3f9c21d07ab4", NOTE, "Keep it")),
        ('3f9c21d07ab4  --title="Don\'t" because', NOTE, NoteText("3f9c21d07ab4", f"because\n\n{NOTE}", "Don't")),
        ("—title “Keep it”", NOTE, NoteText(None, NOTE, "Keep it")),
        ("–Title='Keep Bob’s row'", NOTE, NoteText(None, NOTE, "Keep Bob’s row")),
        ("--title ‘Keep it’", NOTE, NoteText(None, NOTE, "Keep it")),
        ("--title Keep the last row", NOTE, NoteText(None, NOTE, "Keep the last row")),
        ("--title=Keep the last row", NOTE, NoteText(None, NOTE, "Keep the last row")),
        ("--title", NOTE, NoteText(None, NOTE, "")),
        ('3f9c21d07ab4 --title " "', NOTE, NoteText("3f9c21d07ab4", NOTE, "")),
        ("--titles are nice", "", NoteText(None, "--titles are nice", unknown="--titles")),
        ('3f9c21d07ab4 --titel "x"', NOTE, NoteText("3f9c21d07ab4", f'--titel "x"\n\n{NOTE}', unknown="--titel")),
        ("—titel “x”", NOTE, NoteText(None, f"—titel “x”\n\n{NOTE}", unknown="—titel")),
        ("It ends --now-- early", "", NoteText(None, "It ends --now-- early", unknown="--now--")),
        ("It ends -- early", "", NoteText(None, "It ends -- early")),
        ("It takes `--fast`, too", "", NoteText(None, "It takes `--fast`, too")),
    ],
)
def test_a_command_splits_into_digest_and_note(argument: str, body: str, expected: NoteText) -> None:
    assert parse_note(Command("pr", argument, body)) == expected


FORMS = [
    *(
        "{}:",
        "{}.",
        '"{}"',
        "**{}**",
        "({})",
        "“{}”,",
        "digest {}",
        "for {}",
        '--title "x" -- {}',
        '--title "x" **{}**',
    ),
    *("{}, because", "{}\tbecause", "_{}_:"),
]


@pytest.mark.parametrize(
    "command", [*((form, "{note}") for form in FORMS), *(("", f"{form}\n\n{{note}}") for form in FORMS)]
)
def test_a_note_approves_no_other_diff_than_the_one_that_it_names(command: tuple[str, str]) -> None:
    report = make_report(digest=DIGEST)
    stood = [Reply("r", "report", "octo/widgets", 7, "", NOON, next_attempt_at=NOON, job_id=report.job_id)]
    for named, starts in ((DIGEST[:12], ""), (DIGEST, ""), ("ab0f9c21d07a", "`ab0f9c21d07a` is outdated")):
        argument, body = (part.replace("{}", named).replace("{note}", NOTE) for part in command)
        fault = find_fault(parse_note(Command("pr", argument, body)), report, stood)
        assert (fault.reply if fault else "").startswith(starts)
        assert (fault is not None) is bool(starts)


def test_a_digest_that_is_named_later_counts_as_one() -> None:
    report = make_report(digest=DIGEST)
    assert find_fault(parse_note(Command("pr", f"digest {DIGEST[:12]}", NOTE)), report, []) is None


@pytest.mark.parametrize(
    ("argument", "body"),
    [
        (DIGEST, f"It repairs what ab0f9c21d07a broke. {NOTE}"),
        ("", f"It repairs https://github.com/o/r/commit/ab0f9c21d07a . {NOTE}"),
        ("", f"{NOTE}\n\nIt repairs what ab0f9c21d07a broke."),
    ],
)
def test_a_commit_that_a_note_mentions_is_no_digest(argument: str, body: str) -> None:
    report = make_report(digest=DIGEST)
    stood = [Reply("r", "report", "octo/widgets", 7, "", NOON, next_attempt_at=NOON, job_id=report.job_id)]
    assert find_fault(parse_note(Command("pr", argument, body)), report, stood) is None


@pytest.mark.parametrize(
    ("shown", "matches"),
    [(DIGEST[:12], True), (DIGEST, True), (DIGEST[:12].upper(), True), (DIGEST[:11], False), ("0" * 12, False)],
)
def test_twelve_digits_name_a_digest(shown: str, matches: bool) -> None:
    assert matches_digest(shown, DIGEST) is matches


def test_fewer_digits_are_refused_with_the_number_it_takes() -> None:
    assert find_digest_fault(DIGEST[:12]) is None
    reply = find_digest_fault(DIGEST[:6]) or ""
    assert "`3f9c21` is too short. Give at least 12 digits" in reply
    assert "at least 12" in reply


@pytest.mark.parametrize(
    "note",
    [
        NOTE,
        f"> The iterator stops before the final partial chunk because the range excludes it.\n\n{NOTE}",
        f"{NOTE}\n\n```python\nrange(0, n - size + 1)\n```",
        "- reads the tail\n- keeps the order\n- has a test",
        "Die Schleife hörte zu früh auf; jetzt nicht mehr.",
        "循環在最後一個區塊之前就結束了，所以尾端的資料遺失。現在它會一直跑到結尾，我也檢查過測試。",
        "The test failed and the test now passes: the loop ended before the last of the rows.",
        " ".join(f"The loop number {name} ended early, and I checked that it no longer does." for name in NAMES),
        f"{NOTE} It ended too early:\n0<i && i<n, so the last row was lost.",
        f"{NOTE}\n\n```diff\n-  <Row key={{i}}\n+  <Row key={{row.id}}\n   items={{rows}}\n```",
        f"{NOTE}\n\n```jsx\n<form\n```\n\n    <form",
        f"{NOTE}\n\n1. <T is now bound.\n- <n> rows are kept while i <n holds",
        "I read it. The range excludes the tail, and adding one size brings it back without touching callers.",
    ],
)
def test_a_note_in_somebody_s_own_words_stands_and_github_shows_what_is_below_it(note: str) -> None:
    assert fault(note) == ""
    assert "<p><strong>BELOW</strong></p>" in render_github(f"{note}\n\n**BELOW**")


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ("", "Please add a note under the command"),
        (" \n\t", "Please add a note under the command"),
        ("lgtm", f"it has 4 letters of your own, and needs {MIN_LETTERS}"),
        ("👍" * 40, "0 letters"),
        ("." * 100 + "1" * 100, "0 letters"),
        ("a\u200b" * 20, "20 letters"),
        ("> " + NOTE, "only quotes, links or code"),
        (f"```\n{NOTE}\n```", "only quotes, links or code"),
        (f"    {NOTE}", "only quotes, links or code"),
        (f"`{NOTE}`", "only quotes, links or code"),
        (f"<!-- {NOTE} -->", "only quotes, links or code"),
        (f"[{NOTE}](https://example.com)", "only quotes, links or code"),
        ("https://example.com/a/very/long/address/with/many/letters", "only quotes, links or code"),
        (NOTE_PLACEHOLDER, "repeats our template"),
        (NOTE_EXAMPLE, "repeats our template"),
        (f"**{NOTE_EXAMPLE.upper()}** Really.", "repeats our template"),
        ("The iterator stops before the final partial chunk because the range excludes it.", "“The iterator stops"),
        ("the ITERATOR stops, before the *final* partial chunk, because the range excludes it!", "“the ITERATOR stops"),
        ("the iter\u00adator stops before the final partial chunk because the range excludes it", "“the iterator"),
        ("Right: the iterator stops before the final partial chunk. I agree.", "“the iterator stops before"),
        ("a" * 39, "same few words"),
        ("lgtm " * 8, "same few words"),
        ("lgtm1 lgtm2 LGTM3 lgtmm lggtm lgtmmm 4lgtm lgtm", "same few words"),
        ("lgtm looks good to me lgtm lgtm lgtm lgtm", "same few words"),
        ("lgtm, looks good to me, ship it now, please merge. " * 5, "same few words"),
        (f"ok ok ok it is fine by me {'ok ' * 40}", "same few words"),
        ("好的沒問題" * 8, "same few words"),
        (NOTE + " x" * 5000, "can have 10,000"),
        (f"> {NOTE}\n" * 200, "can have 10,000"),
        (f"{NOTE}\n\n```python\nx = 1", "leaves a fence"),
        (f"{NOTE}\n\n<!-- hidden", "leaves a fence, a comment"),
        *(
            (f"{NOTE}\n\n{html}", "leaves a fence")
            for html in (
                "<DETAILS>",
                "<?x",
                "<![CDATA[",
                "<!X",
                "<Script>",
                "<title>",
                "<p title='>",
                "- <p title='",
                "[^1]: <p title='",
                "[^1]: - <p title='",
                "<source src='",
                "<b>\n<i title='",
                "<sub>\nfoo <a href='",
                "<!-- a --><b title='",
                "<pre>x</pre><p title='",
                "<pre>\n\n<b title='\n</pre>",
                "- a\n  - b\n    - c\n      - d\n\n        <p title='",
                "<p\ftitle='",
                "*<!--\n<?-->",
                "</script>\n<script>",
                "</textarea><b\n<textarea>",
                "<p",
                '<h1 id=">',
            )
        ),
        (f"{NOTE}\n\n<details><summary>more</summary>", "HTML element open"),
        ("If you agree with this diff, reply with the line below and, under it, in your own words.", "our template"),
        (
            "This note is too short to tell a reviewer anything: it has 4 letters of your own, and needs 30.",
            "our template",
        ),
        ("An early end. looked, found, fixed. An early end.", "“An early end."),
    ],
)
def test_what_is_no_note_is_refused_with_the_reason_and_an_example(note: str, words: str) -> None:
    reply = fault(note)
    assert words in reply
    assert "own words" in reply
    assert NOTE_EXAMPLE in " ".join(reply.split())
    assert f"/ptq pr {DIGEST[:12]}\n" in reply


@pytest.mark.parametrize("note", ["", "lgtm", f"> {NOTE}", "a" * 39, f"{NOTE}\n\n<!-- x", NOTE_EXAMPLE, REPORT])
def test_a_page_says_why_a_note_does_not_count_without_commands_or_marks_of_markdown(note: str) -> None:
    found = find_note_fault(note, [REPORT], DIGEST[:12])
    assert found
    assert not re.search(r"`|/ptq|\n|For example", found.on_page)
    assert len(found.on_page) < 320


def test_a_note_of_comments_that_nothing_ends_is_read_in_little_time() -> None:
    def read(size: int) -> None:
        assert "leaves a fence, a comment" in fault(f"{NOTE}\n\n{'<!--' * size}")

    assert takes_at_most(24, lambda: read(250), lambda: read(2_000))


def test_a_refusal_holds_no_live_command_and_repeats_no_mention() -> None:
    report = "ask @octocat who has seen this kind of thing happen before"
    found = find_note_fault(report, [report], DIGEST[:12])
    assert found
    reply = found.reply
    assert "is copied from the agent's report" in reply
    assert "@octocat" not in reply
    assert parse_commands(reply) == []


def test_the_longest_copied_passage_is_shown() -> None:
    note = "An early end. But the iterator stops before the final partial chunk because the range excludes it, so."
    assert fault(note).startswith("“the iterator stops before the final partial chunk because the range excludes it”")


@pytest.mark.slow
@given(st.text(max_size=300), st.text(max_size=300))
def test_whatever_the_texts_there_is_an_answer(note: str, report: str) -> None:
    found = find_note_fault(note, [report], DIGEST[:12])
    assert found is None or "own words" in found.reply


@pytest.mark.slow
@given(st.text(alphabet="abcdefgh \n.", min_size=60, max_size=200))
def test_the_report_itself_is_never_a_note(report: str) -> None:
    assert find_note_fault(report, [report], DIGEST[:12]) is not None


PIECES = (
    *("<b>", "</b>", "<i title='", "<p", '<p title="', ">", "'", '"', "<!--", "-->", "<!-- a -->", "<pre>", "</pre>"),
    *("<script>", "</script>", "<details>", "</details>", "<source src='", "<br>", "<a href='", "<?", "?>"),
    *(
        "<![CDATA[",
        "]]>",
        "<!X",
        "<div",
        "</div>",
        "<textarea>",
        "</textarea>",
        "<T x",
        "<svg>",
        "</svg>",
        "<b/>",
        "<b title='a'>",
    ),
    *("\n", "\n\n", "- ", "  ", "    ", "\t", "1. ", "> ", "*", "# ", "---\n", "```", "~~~", "`", "\\", "\f", "text"),
    *("[^1]: ", "[^1]", "[x]: ", "| a |\n|---|\n", "&lt;", "<x:y@z>"),
)


class Shown(HTMLParser):
    """The text that a page shows: without what is inside tags, and inside elements that hide it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self._open: Counter[str] = Counter()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._open[tag] += tag in ("details", "script", "style", "svg", "textarea")

    def handle_endtag(self, tag: str) -> None:
        self._open[tag] = max(0, self._open[tag] - 1)

    def handle_data(self, data: str) -> None:
        self.text += "" if self._open.total() else data


@pytest.mark.slow
@settings(max_examples=500, derandomize=True)
@example("</script><script>")
@example("<details><T x</details>")
@example("*</details><p<svg>\\</svg>")
@example("<svg>- `</svg><b/>`text> ")
@example("[x]: ---\n\t*<svg>")
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("".join))
def test_github_shows_the_text_below_every_note_that_stands(end: str) -> None:
    note = f"{NOTE}\n\n{end}"
    assert fault(note) or "BELOW" in Shown(render_github(f'{note}\n\nBELOW\n\nit\'s <b>"below"</b>')).text
