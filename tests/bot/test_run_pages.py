"""What the pages of a run say about its agent's work, and what they keep to themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from bot.web.dashboard.listing import PAGE
from bot.web.job_logs import MARGIN, SENT_LOG, SHOWN_LOG
from runner.model.job import JobKind, JobState
from tests.support.jobs import NOON
from tests.support.site import SECRET, Page, Site, make_report, open_site

FINISHED = (Path(__file__).parents[1] / "transcripts" / "claude" / "finished.jsonl").read_bytes()
ID = "0123456789"
CONFIDENTIAL = "**Outcome:** security concern\n\nAnybody may read the words of others."


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(tmp_path) as site:
        yield site


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "spool"])
async def test_the_log_of_an_agent_that_tells_events_reads_as_what_it_did(site: Site, kept: bool) -> None:
    job = await site.add(state=JobState.RUNNING, agent="claude")
    if kept:
        await site.keep_log(job, "agent", FINISHED)
    else:
        site.spool.append(job.id, "agent", FINISHED)
    page = await site.get(f"/jobs/{job.id}")
    for part in ("▸ Bash: echo hello", "All done.", "The agent has finished."):
        assert part in page.text
    assert "tool_use" not in page.text
    assert [name for name in page.classes() if name in ("called", "result", "said")] == ["called", "result", "said"]


async def test_only_the_agents_own_log_is_read_as_events(site: Site) -> None:
    job = await site.add(state=JobState.FAILED, agent="claude")
    await site.keep_log(job, "prepare", FINISHED)
    assert FINISHED.decode() in (await site.get(f"/jobs/{job.id}")).text


async def test_the_log_of_the_checks_has_a_heading_for_each_run_and_each_output_once(site: Site) -> None:
    job = await site.add(state=JobState.SUCCEEDED)
    log = "".join(f"\x1e[Check 1 on the base commit, run {n} of 3.]\n<b>AssertionError: 4\n" for n in (1, 2, 3))
    await site.keep_log(job, "check", log.encode())
    page = await site.get(f"/jobs/{job.id}")
    assert [tag for tag, _ in page.tags].count("h3") == 3
    assert page.text.count("<b>AssertionError: 4") == 1
    assert page.text.count("The same output as in the first run.") == 2
    assert (await site.get(f"/jobs/{job.id}/log/check")).html == log.replace("\x1e", "")


async def test_while_a_job_runs_the_logs_of_its_earlier_stages_are_folded(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING)
    site.spool.append(job.id, "prepare", b"\x1e[Fetching the repository.]\n")
    page = await site.get(f"/jobs/{job.id}")
    logs = [attrs for tag, attrs in page.tags if tag == "details"][-2:]
    assert logs == [{}, {"open": None}], "the agent's log is shown before its first line"
    assert "Fetching the repository." in page.text


@pytest.mark.parametrize("agent", ["mine", "no longer configured"])
async def test_the_log_of_an_agent_that_tells_no_events_stays_as_it_is(site: Site, agent: str) -> None:
    job = await site.add(state=JobState.FAILED, agent=agent)
    await site.keep_log(job, "agent", FINISHED + b"\n  plain <b>\n")
    assert FINISHED.decode() + "\n  plain <b>\n" in (await site.get(f"/jobs/{job.id}")).text


async def test_what_an_agent_said_stays_text(site: Site) -> None:
    hostile = "<script>alert(1)</script> </pre> {{ 7 * 7 }} \u202e \u001b[31mred"
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": hostile}]}}
    job = await site.add(state=JobState.FAILED, agent="claude")
    await site.keep_log(job, "agent", json.dumps(said).encode())
    page = await site.get(f"/jobs/{job.id}")
    assert "<script>alert(1)</script> </pre> {{ 7 * 7 }} ⟨U+202E⟩ red" in page.text
    assert "script" not in {tag for tag, _ in page.tags}


async def test_a_secret_with_quotes_and_line_breaks_is_in_no_log(tmp_path: Path) -> None:
    secret = 'a "quoted"\nsecond line'
    event = {
        "type": "user",
        "message": {"content": [{"type": "tool_result", "content": f"it is {secret}. {json.dumps(secret)}"}]},
    }
    async with open_site(tmp_path, secrets=(secret,)) as site:
        for agent in ("claude", "mine"):
            job = await site.add(id=agent, thread=len(agent), state=JobState.FAILED, agent=agent)
            await site.keep_log(job, "agent", json.dumps(event).encode())
            for path in (f"/jobs/{job.id}", f"/jobs/{job.id}/log/agent"):
                page = await site.get(path)
                assert "it is [redacted]. " in page.text
                assert "second line" not in page.text


@pytest.mark.slow
async def test_of_a_long_log_of_events_the_end_the_end_is_shown_from_a_whole_event_on(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING, agent="claude")
    lines = [
        json.dumps({"type": "user", "message": {"content": [{"type": "tool_result", "content": str(number)}]}})
        for number in range(20_000)
    ]
    site.spool.append(job.id, "agent", "\n".join([*lines, ""]).encode())
    page = await site.get(f"/jobs/{job.id}")
    assert "19999" in page.text
    assert "[the beginning is left out]" in page.text
    assert "tool_result" not in page.text, "half an event"
    shown = page.classes().count("result")
    assert SHOWN_LOG < shown * (len(lines[-1]) + 1) < SHOWN_LOG + 2 * MARGIN


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "spool"])
@pytest.mark.parametrize("stage", ["prepare", "agent", "collect"])
async def test_every_log_is_there_as_it_is(site: Site, stage: str, kept: bool) -> None:
    job = await site.add(state=JobState.RUNNING, agent="claude")
    log = FINISHED + b"caf\xc3\xa9 \x1b[1mbold\x1b[0m <b> \x07\n"
    if kept:
        await site.keep_log(job, stage, log)
    else:
        site.spool.append(job.id, stage, log)
    assert f"/jobs/{job.id}/log/{stage}" in (await site.get(f"/jobs/{job.id}")).links()
    page = await site.get(f"/jobs/{job.id}/log/{stage}")
    assert page.html == FINISHED.decode() + "café bold <b> ⟨U+0007⟩\n"
    assert page.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


@pytest.mark.slow
async def test_of_a_huge_raw_log_the_end_is_sent_without_secrets(site: Site) -> None:
    job = await site.add(state=JobState.FAILED)
    secret = f"{SECRET}\n".encode()
    before = b"first\n" + secret * (MARGIN // 20)
    await site.keep_log(job, "agent", before + b"x" * SENT_LOG + b"\n" + secret + b"last\n")
    page = await site.get(f"/jobs/{job.id}/log/agent")
    assert page.html.startswith("[the beginning is left out]\n")
    assert page.html.endswith("x\n[redacted]\nlast\n")
    assert "first" not in page.html
    assert "secret" not in page.html
    assert SENT_LOG - MARGIN < len(page.html) < SENT_LOG + MARGIN


@pytest.mark.slow
async def test_whoever_else_asks_need_not_wait_for_a_huge_log(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING)
    site.spool.append(job.id, "agent", FINISHED * (SENT_LOG // len(FINISHED)))
    now, waits = asyncio.get_running_loop().time, [0.0]

    async def look_elsewhere() -> None:
        while True:
            start = now()
            await asyncio.sleep(0.001)
            waits.append(now() - start)

    other, start = asyncio.create_task(look_elsewhere()), now()
    async with site.session.get(f"{site.url}/jobs/{job.id}/log/agent") as reply:
        await reply.read()
    took = now() - start
    await asyncio.sleep(0.01)
    other.cancel()
    assert max(waits) < 0.9 * took, (max(waits), took)


@pytest.mark.parametrize("path", [f"{ID}/log/nothing", f"{ID}/log/agent", "nobody/log/agent", f"{ID}/log"])
async def test_a_log_that_is_not_there_is_404(site: Site, path: str) -> None:
    await site.add(state=JobState.RUNNING)
    page = await site.get(f"/jobs/{path}")
    assert page.status == 404
    if path != f"{ID}/log":
        assert page.headers["Cache-Control"] == "no-store"


async def test_the_page_says_what_the_run_took_with_what_and_after_which(site: Site) -> None:
    await site.add(id="earlier", state=JobState.FAILED)
    job = await site.add(
        attempt=2, state=JobState.SUCCEEDED, model="asked-for", skills=("gpu", "style"), follows="earlier",
        started_at=NOON, ended_at=NOON + timedelta(seconds=200),
    )  # fmt: skip
    await site.take(job, model="said-by-itself", turns=12, tool_calls=34, input_tokens=120_000, cost_usd=0.42)
    page = await site.get(f"/jobs/{job.id}")
    text = " ".join(page.text.split())
    for part in (
        "Took3 min 20 s, 12 turns, 34 tool calls, 120k tokens, $0.42 ",
        "Modelsaid-by-itself ",
        "Skillsgpu, style ",
        "Continuesattempt 1 ",
    ):
        assert part in text
    assert "/jobs/earlier" in page.links()
    assert "asked-for" not in text


async def test_what_a_run_takes_is_live(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING, model="asked-for", started_at=NOON - timedelta(seconds=61))
    text = " ".join((await site.get(f"/jobs/{job.id}")).text.split())
    assert "Modelasked-for So far1 min 1 s" in text
    for turns in (1, 2):
        await site.take(job, turns=turns, input_tokens=1000, cost_usd=0.5, cost_is_estimate=True)
        text = " ".join((await site.get(f"/jobs/{job.id}")).text.split())
        assert f"So far1 min 1 s, {turns} turn{'s' * (turns > 1)}, 1k tokens, about $0.50" in text


async def test_unknown_values_have_no_row(site: Site) -> None:
    await site.add()
    text = (await site.get("/jobs/0123456789")).text
    for title in ("Took", "So far", "Model", "Skills", "Continues"):
        assert title not in text


async def test_the_list_says_what_each_run_cost(site: Site) -> None:
    for number, cost in enumerate((0.42, 1234.5, None), 1):
        job = await site.add(id=f"job{number}", thread=number, state=JobState.FAILED)
        await site.take(job, turns=1, input_tokens=10, cost_usd=cost)
    await site.add(id="waiting", thread=9)
    page = await site.get("/jobs")
    assert page.text.count("$") == 2
    assert "$0.42" in page.text
    assert "$1,234.50" in page.text
    assert page.html.count('<td class="right"></td>') == 6, "nothing says how long they took, and two costs are unknown"


async def test_a_worktree_has_no_agent_and_is_in_no_list(site: Site) -> None:
    job = await site.add(state=JobState.SUCCEEDED, kind=JobKind.WORKTREE, series=1, name="try")
    assert "Agentnone (edited by a person)" in (await site.get(f"/jobs/{job.id}")).text
    assert f"/jobs/{job.id}" not in (await site.get("/jobs")).links()


async def test_private_jobs_take_no_place_in_the_list(site: Site) -> None:
    await site.add(id="public", state=JobState.FAILED)
    for number in range(PAGE + 1):
        later = NOON + timedelta(minutes=1)
        await site.add(id=f"p{number}", private=True, thread=number, state=JobState.FAILED, created_at=later)
    assert [link for link in (await site.get("/jobs")).links() if "/jobs/" in link] == ["/jobs/public"]


async def add_confidential(site: Site, body: str = CONFIDENTIAL) -> None:
    await site.add(id="earlier", state=JobState.FAILED, requested_by="somebody")
    job = await site.add(
        make_report(body=body, worklog="how", repro="exploit()", warnings=("Look out.",), refusals=("No.",)),
        attempt=2, state=JobState.FAILED, failure="it leaked", trouble="held", agent="claude", machine="gpu-1",
        model="opus", skills=("gpu",), follows="earlier", started_at=NOON, ended_at=NOON + timedelta(seconds=200),
    )  # fmt: skip
    await site.take(job, turns=12, tool_calls=34, input_tokens=120_000, cost_usd=0.42)
    await site.keep_log(job, "agent", FINISHED)


CONFIDENTIAL_PATHS = ("", "/patch", "/log/agent", "/log/prepare", "/log/nothing")


@pytest.mark.parametrize("path", CONFIDENTIAL_PATHS)
async def test_a_confidential_run_shows_only_that_it_has_ended(site: Site, path: str) -> None:
    await add_confidential(site)
    page = await site.get(f"/jobs/0123456789{path}")
    assert page.status == 200
    assert page.headers["Cache-Control"] == "no-store"
    heading = "octo/widgets#7 · fix · ended octo/widgets#7 ended Presetfix, attempt 2"
    assert " ".join(page.text.split()) == f"{heading} Only the operator can see this result."
    assert not [link for link in page.links() if "/jobs/" in link or link.startswith("#")]


async def test_any_other_run_is_shown(site: Site) -> None:
    await add_confidential(site, "**Outcome:** fix staged\n\nNo security concern.")
    page = await site.get("/jobs/0123456789")
    for part in ("No security concern.", "exploit()", "it leaked", "$0.42", "Look out.", "queued by"):
        assert part in page.text
    assert "$0.42" in (await site.get("/jobs")).text


@pytest.mark.parametrize("body", [CONFIDENTIAL, "\n\n# Title\n\nSECURITY CONCERN", "\u017fecurity concerns"])
async def test_a_confidential_run_is_a_row_without_its_cost(site: Site, body: str) -> None:
    await add_confidential(site, body)
    other = await site.add(id="other", thread=8, state=JobState.FAILED)
    await site.take(other, turns=1, input_tokens=1, cost_usd=7)
    page = await site.get("/jobs")
    assert page.text.count("$") == 1
    assert "$7.00" in page.text
    assert "/jobs/0123456789" in page.links()
    assert "concern" not in page.text.casefold()


def find_first(page: Page) -> list[str | None]:
    """The part that is shown until another one is chosen."""
    return [attrs["id"] for tag, attrs in page.tags if tag == "section" and attrs.get("class") == "panel first"]


async def test_a_page_that_reloads_says_so_and_shows_the_log_first(site: Site) -> None:
    job = await site.add(make_report(), state=JobState.COLLECTING)
    site.spool.append(job.id, "agent", b"at work\n")
    page = await site.get(f"/jobs/{job.id}")
    assert "This page reloads every 5 seconds." in page.text
    assert find_first(page) == ["log"]
    assert [attrs for tag, attrs in page.tags if tag == "details" and "class" not in attrs] == [
        {"open": None},  # The history.
        {},  # The log of an earlier stage.
        {"open": None},
    ]


async def test_a_page_that_stays_says_nothing_of_that_and_shows_the_report_first(site: Site) -> None:
    job = await site.add(make_report(), state=JobState.SUCCEEDED)
    await site.keep_log(job, "agent", b"at work\n")
    page = await site.get(f"/jobs/{job.id}")
    assert "reloads" not in page.text
    assert find_first(page) == ["summary"]
    assert [attrs for tag, attrs in page.tags if tag == "details" and "class" not in attrs] == [
        {},  # The history.
        {"open": None},  # The log.
    ]
