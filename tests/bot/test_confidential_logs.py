"""Only operators see bytes of a log that read like a security concern."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.config.settings import load_settings
from bot.operations.bundle import NotBundled, make_bundle
from runner.model.job import JobState
from runner.steps.spool import Spool
from tests.bot.test_bundle import JOB, fill
from tests.bot.test_live_log import follow, say
from tests.support.site import Site, make_report, open_site

CONCERN = say("One.") + say("**Outcome:** security concern\n\nHere is how.") + say("Three.")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(tmp_path) as site:
        yield site


@pytest.mark.parametrize("path", ["", "/log/agent"])
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.COLLECTING, JobState.LOST])
@pytest.mark.parametrize("is_metered", [True, False])
async def test_a_page_shows_no_log_that_reads_like_a_concern_before_any_meter_says_so(
    site: Site, path: str, state: JobState, is_metered: bool
) -> None:
    job = await site.add(state=state, agent="claude")
    if is_metered:
        await site.take(job, withheld=False)
    if state is JobState.LOST:
        await site.keep_log(job, "agent", CONCERN)
    else:
        site.spool.append(job.id, "agent", CONCERN)
    page = await site.get(f"/jobs/{job.id}{path}")
    assert page.status == 200
    assert "Here is how" not in page.html
    assert "Three" not in page.html


async def test_a_report_without_words_opens_no_log_that_reads_like_a_concern(site: Site) -> None:
    job = await site.add(make_report(body=" \n"), state=JobState.FAILED, agent="claude")
    await site.take(job, withheld=True)
    await site.keep_log(job, "agent", CONCERN)
    for path in ("", "/log/agent", "/patch"):
        page = await site.get(f"/jobs/{job.id}{path}")
        assert "Here is how" not in page.html
        assert "diff --git" not in page.html


async def test_a_report_of_another_outcome_opens_it(site: Site) -> None:
    job = await site.add(make_report(), state=JobState.SUCCEEDED, agent="claude")
    await site.keep_log(job, "agent", CONCERN)
    assert "Here is how" in (await site.get(f"/jobs/{job.id}")).html


async def test_a_live_log_whose_concern_stands_before_its_shown_end_is_not_sent(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING, agent="claude")
    site.spool.append(job.id, "agent", CONCERN + say("x" * 1000) * 400 + say("More of it."))
    async with follow(site) as reader:
        assert (await reader.drain())[-2:] == ["gone", "over"]
        assert "More of it" not in reader.log


async def test_a_bundle_has_no_log_that_reads_like_a_concern(tmp_path: Path) -> None:
    settings, target = load_settings(await fill(tmp_path)), tmp_path / "bundle.tar.gz"
    Spool(settings.server.data_dir / "spool").append(JOB, "agent", CONCERN)
    with pytest.raises(NotBundled, match="for you alone"):
        await make_bundle(settings, JOB, target)
    assert not target.exists()
