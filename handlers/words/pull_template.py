"""Fills in a repository's pull request template: its headings, with our text under each. Pure.

Only the text of the headings is used: no instructions, comments or checkboxes. The template is untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from handlers.text.markdown import parse_blocks
from handlers.text.report import ParsedReport, parse_report
from handlers.text.sanitize import cut, disarm, make_safe_line, redact
from handlers.text.voice import Label, quote
from runner.model.job import Job, Report

FOLDERS = (".github", "", "docs")
"""The folders that may contain a template, in order of precedence."""

MAX_TEMPLATE = 100_000
"""The most characters of a template that are read."""

MAX_HEADINGS = 30
MAX_HEADING = 200
MAX_ANSWER = 1_000
"""The most characters under a heading. The whole report follows below."""

MAX_RENDERED = 20_000
"""The most characters of all headings and answers."""

_REST_BELOW = "… (all of it is in the agent's report below)"
_NAME = re.compile(r"pull_request_template(?:\.md|\.txt)?", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOTE = re.compile(r"summary|descriptions?|overview|motivation|context|purpose|proposed|why|what\b")
_ISSUE = re.compile(r"(?:(?:related|linked|github) )?(?:issues?|tickets?)\b|(?:fix(?:es)?|closes?|references?)$")
_ROOT_CAUSE = re.compile(r"(?:root )?causes?\b")
_CHANGE = re.compile(r"(?:what )?chang(?:es?|ed)\b(?!.?log)|implementation|solution|approach|how (?:it|this) works")
_TEST = re.compile(r"\b(?:\w++ )?tests?\b|testing\b|tested\b|verification\b|how .{0,30}\btest")


def choose_template(paths: Iterable[str]) -> str | None:
    """The first path whose file name is that of a template. None if there is none."""
    return next((path for path in paths if _NAME.fullmatch(path.rpartition("/")[2])), None)


def render_template(template: str, job: Job, report: Report, secrets: Collection[str]) -> str:
    """The headings of the template with our texts. Empty if the template has no headings."""
    parsed = parse_report(redact(report.body, secrets))
    parts = []
    for level, words in _find_headings(_COMMENT.sub("", redact(template[:MAX_TEMPLATE], secrets))):
        title = make_safe_line(words, secrets, MAX_HEADING).strip()
        answer = _answer(re.sub(r"[\W\d_]+", " ", words).strip().casefold(), job, parsed)
        parts += [f"{'#' * level} {title}", answer] if title else []
    return cut("\n\n".join(parts), MAX_RENDERED, "…")


def _find_headings(template: str) -> Iterator[tuple[int, str]]:
    """The level and the text of each of the first headings."""
    found = (
        (int(opening.tag[1:]), inline.content)
        for opening, inline in pairwise(parse_blocks(template))
        if opening.type == "heading_open" and opening.level == 0
    )
    yield from (heading for heading, _ in zip(found, range(MAX_HEADINGS), strict=False))


def _answer(title: str, job: Job, parsed: ParsedReport) -> str:
    if _ISSUE.match(title):
        return f"#{job.thread}" if job.thread is not None else "n/a"
    answers = ((_ROOT_CAUSE, parsed.root_cause), (_CHANGE, parsed.change), (_TEST, parsed.test))
    for pattern, words in answers:
        if words and pattern.match(title):
            return f"*{Label.AGENTS_WORDS}*\n\n{disarm(quote(words, (), MAX_ANSWER, _REST_BELOW))}"
    return "See the note above." if _NOTE.match(title) else "n/a"
