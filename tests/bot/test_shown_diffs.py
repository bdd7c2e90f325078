"""What pages and files show of a diff: the same as the comment, line for line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runner.model.job import JobState
from tests.support.site import PATCH, SECRET, Page, Site, make_report, open_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(tmp_path) as site:
        yield site


async def test_page_and_patch_show_each_line_of_a_diff_with_its_mark(site: Site) -> None:
    ends = [PATCH.replace(" items = 5", f" -----{end} PRIVATE KEY-----") for end in ("BEGIN", "END")]
    lines = f"+# \revil()\n+\u2028x\n+⟨U+202E⟩\n+{SECRET}\n+caf\U0010ffe9\r\n"
    patch = ends[0] + PATCH.replace("chunks", "evil") + ends[1] + lines
    shown = "+# ⟨U+000D⟩evil()\n+⟨U+2028⟩x\n+⟨U+27E8⟩U+202E⟩\n+[redacted]\n+caf⟨0xE9⟩⟨U+000D⟩\n"
    await site.add(make_report(patch=patch), state=JobState.SUCCEEDED)
    for path in ("/patch", "/files/change.patch"):
        assert (await site.get(f"/jobs/0123456789{path}")).html == patch.replace(lines, shown)
    page = await site.get("/jobs/0123456789")
    for section in patch.replace(lines, shown).split("diff --git "):
        assert section in page.text
    assert "1 added line with what looks like a secret, masked in the diff of `chunks.py`" in page.text
    assert "cannot be applied as it is shown" in page.text
    assert "cannot be applied" not in (await _show_whole(site)).text


async def _show_whole(site: Site) -> Page:
    job = await site.add(make_report(job_id="1123456789"), id="1123456789", thread=2, state=JobState.SUCCEEDED)
    return await site.get(f"/jobs/{job.id}")


async def test_side_by_side_shows_each_line_of_a_diff_too(site: Site) -> None:
    patch = PATCH + PATCH.replace("chunks", "other").replace("+++ size", f"+{SECRET}\n+\u2028x")
    await site.add(make_report(patch=patch), state=JobState.SUCCEEDED)
    page = await site.get("/jobs/0123456789?view=split")
    shown = page.text.split("\n")
    for line in patch.replace(SECRET, "[redacted]").replace("\u2028", "⟨U+2028⟩").splitlines():
        assert line in shown, line
    assert [name for name in page.classes() if name == "again"] == ["again", "again"], "of a context line"
