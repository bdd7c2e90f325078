"""Every case of the hostile corpus goes by the real functions of its channel, and no rule of them is there in vain."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.commands.table import parse_commands
from runner.model.job import JobState
from tests.support.channels import LIVE, SWITCHES, WAYS, find_breaches, read_brief
from tests.support.corpus import Case, cases_of, load_corpus
from tests.support.site import Page, make_report, open_site

SHORT = [case.text for case in load_corpus() if len(case.text) < 1_000]
slices = st.tuples(st.sampled_from(SHORT), st.integers(0, 60), st.integers(0, 200)).map(
    lambda cut: cut[0][cut[1] :][: cut[2]]
)
splices = st.lists(st.sampled_from(SHORT) | slices | st.sampled_from("\n `<>[]@#!\\"), max_size=6).map("".join)

HARMLESS_TAGS = re.compile(
    "html|head|meta|title|link|body|header|main|h[1-6]|span|d[ltd]|p|a|small|details|summary|ol|li|time|strong|nav"
    "|section|pre|code|div|ul|ins|del|em|s|blockquote|hr|br|table|thead|tbody|tr|th|td"
)
AGE = ("time", "title")
"""The exact time of what happened some minutes ago."""
HARMLESS_ATTRIBUTES = frozenset(
    (
        *("lang", "charset", "name", "content", "rel", "href", "class", "id", "open"),
        *("tabindex", "download", "aria-label", "aria-live", "hx-disable", "role", "start", "datetime", "data-n"),
    )
)
UNTRUSTED_REL = "noopener nofollow noreferrer"
"""Of a link that an agent's Markdown may have: the one that leads to where it says, and tells nobody whence."""


def name(case: Case) -> str:
    return f"{case.channel}: {case.name}"


def test_the_corpus_is_not_small() -> None:
    assert len({(case.channel, case.text, json.dumps(case.fields)) for case in load_corpus()}) >= 400
    assert {case.channel for case in load_corpus()} == {*WAYS, "page", "log"}


def test_every_case_says_what_is_to_come_out() -> None:
    assert [name(case) for case in load_corpus() if not {"shown", "holds", "lacks", "most"} & set(case.fields)] == []


@pytest.mark.parametrize("case", cases_of(*WAYS), ids=name)
def test_what_comes_out_is_what_should_and_nothing_in_it_is_live(case: Case) -> None:
    out = WAYS[case.channel](case)
    assert [*case.complain(out)] == []
    assert find_breaches(case.channel, out) == []


@pytest.mark.parametrize(
    ("channel", "rule"), [(channel, rule) for channel, (_, rules) in SWITCHES.items() for rule in rules]
)
def test_without_any_single_rule_a_case_fails(channel: str, rule: str) -> None:
    way, _ = SWITCHES[channel]
    assert any([*case.complain(way(case, rule))] for case in cases_of(channel)), rule


@pytest.mark.parametrize("case", cases_of("post", "title", "secret"), ids=name)
def test_what_is_safe_stays_as_it_is(case: Case) -> None:
    out = WAYS[case.channel](case)
    again = Case(case.channel, case.name, out, {key: case.fields[key] for key in case.fields if key == "limit"})
    assert WAYS[case.channel](again) == out


@pytest.mark.parametrize("case", cases_of("post", "pull"), ids=name)
def test_no_comment_of_ours_commands_anything(case: Case) -> None:
    assert parse_commands(WAYS[case.channel](case)) == []


def test_every_author_stands_in_a_block_of_their_own() -> None:
    for case in cases_of("issue"):
        sources = [source for source in read_brief(case) if source.startswith(("issue body", "comment"))]
        assert len(sources) == len(set(sources)) <= 2


@pytest.mark.parametrize("channel", WAYS)
@settings(max_examples=40, deadline=None)
@given(text=splices)
def test_whatever_the_cases_make_together_goes_through(channel: str, text: str) -> None:
    fields = {"author": text[:80]} if channel == "author" else {}
    assert find_breaches(channel, WAYS[channel](Case(channel, "spliced", text, fields))) == []


# Pages


LOG_TOOLS: tuple[tuple[str, dict[str, str | None]], ...] = (
    ("span", {"class": "tools", "hidden": None}),
    ("label", {"class": "find"}),
    ("input", {"type": "search", "id": "find", "placeholder": "Search this log"}),
    ("output", {"id": "found"}),
)
"""What the template has for the log of a job that has ended, once."""


def find_active(page: Page) -> list[str]:
    """What on a page is none of our template's."""
    found = [*page.tags]
    for tool in LOG_TOOLS:
        found.remove(tool)
    tags = [tag for tag, _ in found if not HARMLESS_TAGS.fullmatch(tag)]
    attributes = [
        key for tag, attributes in found for key in attributes if key not in HARMLESS_ATTRIBUTES and (tag, key) != AGE
    ]
    leads = [(known.get("href") or "/", known.get("rel")) for _, known in page.tags]
    links = [
        href
        for href, rel in leads
        if not href.startswith(("/", "#")) and (rel != UNTRUSTED_REL or not re.match("https?://", href))
    ]
    return [*tags, *attributes, *links, *map(str, page.refreshes())]


@pytest.mark.slow
async def test_every_page_shows_what_it_should_and_runs_nothing(tmp_path: Path) -> None:
    async with open_site(tmp_path, secrets=LIVE) as site:
        for number, case in enumerate(cases_of("page", "log"), 1):
            key, text = f"{number:010x}", case.text
            texts = {"body": text, "worklog": text, "pr_title": text, "repro": text, "patch": text}
            report = make_report(job_id=key, warnings=(text,), **texts) if case.channel == "page" else None
            job = await site.add(report, id=key, thread=number, agent="claude", state=JobState.FAILED, failure=text)
            await site.keep_log(job, "agent", text.encode())
            page = await site.get(f"/jobs/{job.id}")
            assert ([*case.complain(page.text)], find_active(page)) == ([], []), name(case)
            assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.slow
async def test_a_page_with_all_of_the_corpus_on_it_runs_nothing(tmp_path: Path) -> None:
    text = "\n".join(SHORT).encode(errors="replace").decode().replace("\0", "")
    async with open_site(tmp_path, secrets=LIVE) as site:
        report = make_report(body=text, worklog=text, repro=text, patch=text, warnings=(text,), refusals=(text,))
        job = await site.add(report, agent="claude", state=JobState.FAILED, failure=text)
        await site.keep_log(job, "agent", text.encode())
        page = await site.get(f"/jobs/{job.id}")
        assert page.status == 200
        assert find_active(page) == []
        assert not [secret for secret in LIVE if secret in page.text]
