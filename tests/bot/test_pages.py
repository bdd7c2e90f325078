from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from sqlalchemy import event

from bot.web.dashboard.rendering import escape_in_pieces
from bot.web.job_logs import LEFT_OUT, MARGIN, SHOWN_LOG
from bot.web.pages import REFRESH_S
from bot.web.readiness import LASTS_S
from handlers.cases import casebook
from handlers.inbox.receiving import MAX_PENDING
from runner.db.schema import deliveries
from runner.model.inventory import Inventory
from runner.model.job import FINAL, Job, JobState
from runner.model.machines import Gpu, Lease
from runner.rows import job_rows
from runner.rows.machine_states import save_inventory, save_strangers
from tests.support.cpu_time import measure_longest_call, no_garbage_collection
from tests.support.jobs import NOON
from tests.support.site import PATCH, SECRET, Page, Site, make_report, open_site

HOSTILE = "<script>alert(1)</script> \"'><img src=x onerror=alert(1)> </pre></code>&lt;b&gt; {{ 7 * 7 }}"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(tmp_path) as site:
        yield site


async def test_behind_the_front_door_are_queue_and_machines(site: Site) -> None:
    page = await site.get("/")
    assert "0 of 2 slots taken" in page.text
    assert "/jobs" in page.links()
    assert "No jobs yet." in (await site.get("/jobs")).text


async def test_the_actions_of_a_job_are_read_without_its_long_texts(site: Site) -> None:
    asked: list[str] = []

    def remember(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    await site.add(make_report(), state=JobState.SUCCEEDED)
    event.listen(site.database.engine.sync_engine, "before_cursor_execute", remember)
    assert (await site.get("/jobs/0123456789/actions")).status == 200
    assert any("FROM reports" in statement for statement in asked)
    assert not [statement for statement in asked if "reports.patch" in statement or "FROM file_changes" in statement]


async def test_the_list_shows_the_newest_job_first_and_links_it(site: Site) -> None:
    await site.add(id="old", state=JobState.FAILED)
    await site.add(id="new", thread=8, created_at=NOON + timedelta(minutes=1), trouble="no machine answers")
    page = await site.get("/jobs")
    assert [link for link in page.links() if "/jobs/" in link] == ["/jobs/new", "/jobs/old"]
    assert [name for name in page.classes() if name in set(JobState)] == ["queued", "failed"]
    for part in ("octo/widgets#8", "fix", "requested by maintainer", "just now", "no machine answers"):
        assert part in page.text


async def test_jobs_of_private_repositories_have_no_page_where_nobody_can_sign_in(site: Site) -> None:
    await site.add(make_report(job_id="secretjob1"), id="secretjob1", private=True, repository="octo/hidden")
    await site.add(id="publicjob1")
    page = await site.get("/jobs")
    assert "/jobs/publicjob1" in page.links()
    assert "hidden" not in page.html
    assert "secretjob1" not in page.html
    assert "hidden" not in str(await site.status())
    for path in ("", "/patch", "/files/report.md", "/log/agent", "/log/agent/events", "/actions"):
        answer = await site.get(f"/jobs/secretjob1{path}")
        missing = await site.get(f"/jobs/nothing{path}")
        assert (answer.status, answer.html) == (404, missing.html), path
        assert "Not found, or you don't have access" in answer.text
        assert "private repositories have no pages" in answer.text


@pytest.mark.parametrize("path", ["/deliveries", "/spend"])
async def test_where_nobody_can_sign_in_a_page_for_operators_says_so(site: Site, path: str) -> None:
    page = await site.get(path)
    assert page.status == 404
    assert "ptq.toml has no [dashboard] table" in page.text
    assert "ptq-bot costs" in page.text


@pytest.mark.parametrize("state", JobState)
async def test_the_page_of_a_job_shows_its_state_and_loads_itself_anew_while_it_may_change(
    site: Site, state: JobState
) -> None:
    await site.add(state=state)
    page = await site.get("/jobs/0123456789")
    assert page.classes()[:2] == ["state", str(state)]
    assert f"octo/widgets#7 · fix · {state}" in page.text
    assert page.refreshes() == ([] if state in FINAL else [str(REFRESH_S)])


async def test_the_page_of_a_job_tells_where_how_and_how_long_it_ran(site: Site) -> None:
    job = await site.add(
        state=JobState.FAILED,
        machine="gpu-1",
        base_commit="0123456789abcdef" * 2 + "01234567",
        started_at=NOON,
        ended_at=NOON + timedelta(seconds=200),
        failure="the agent was stopped after 200 seconds, its time limit",
    )
    async with site.database.write() as connection:
        await job_rows.add_event(connection, job.id, NOON + timedelta(seconds=3), "preparing")
    text = " ".join((await site.get(f"/jobs/{job.id}")).text.split())
    for part in (
        "Agentmine on gpu-1 Took3 min 20 s",
        "main at 0123456789ab",
        "its time limit",
        "attempt 1",
        "by maintainer on",
        "2026-03-01 12:00:00 UTC queued by @maintainer2026-03-01 12:00:03 UTC preparing",
    ):
        assert part in text


async def test_what_holds_a_job_up_stands_on_its_page(site: Site) -> None:
    await site.add(trouble="machine gpu-1 cannot be reached")
    assert "Waiting: machine gpu-1 cannot be reached" in (await site.get("/jobs/0123456789")).text


async def test_the_page_of_a_finished_job_has_report_diff_and_logs_with_links_to_each(site: Site) -> None:
    report = make_report(worklog="looked\n", repro="chunked()", refusals=("Too big.",), warnings=("Hidden letters.",))
    job = await site.add(report, state=JobState.SUCCEEDED)
    await site.keep_log(job, "agent", b"Ran the tests.\n")
    page = await site.get(f"/jobs/{job.id}")
    for part in (
        "It is fixed.",
        "looked",
        "chunked()",
        "Too big.",
        "Hidden letters.",
        "abababababab",
        "Ran the tests.",
    ):
        assert part in page.text
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    parts = {"summary": ["report"], "diff": [], "checks": [], "worklog": [], "log": ["log-agent"], "files": ["repro"]}
    assert sections == [section for part, inner in parts.items() for section in (part, *inner)]
    links = [link for link in page.links() if link.startswith("#")]
    assert links == [*(f"#{part}" for part in parts), "#end-of-agent"]
    assert [name for name in page.classes() if name in ("hunk", "minus", "plus")] == ["hunk", "minus", "plus"]
    assert PATCH in page.text


async def test_the_raw_patch_is_what_git_applies(site: Site, tmp_path: Path) -> None:
    await site.add(make_report(), state=JobState.SUCCEEDED)
    page = await site.get("/jobs/0123456789/patch")
    assert (page.html, page.headers["Content-Type"]) == (PATCH, "text/plain; charset=utf-8")
    (tmp_path / "chunks.py").write_text("items = 5\n-- size\n")
    subprocess.run(["git", "apply", "-"], input=page.html, cwd=tmp_path, text=True, check=True)
    assert (tmp_path / "chunks.py").read_text() == 'items = 5\n++ size < 3 & "x"\n'


IN_THE_JOB = ("trouble", "failure", "requested_by", "base_branch", "machine", "repository", "preset")
IN_THE_REPORT = ("body", "worklog", "repro", "patch")


async def show_everywhere(site: Site, text: str) -> Page:
    """The page of a job that has this text wherever somebody else may have written it."""
    report = make_report(**dict.fromkeys(IN_THE_REPORT, text), refusals=(text,), warnings=(text,))
    job = await site.add(report, **dict.fromkeys(IN_THE_JOB, text), base_commit="0" * 40, state=JobState.FAILED)
    await site.keep_log(job, "agent", text.encode())
    async with site.database.write() as connection:
        await job_rows.add_event(connection, job.id, NOON, text)
    return await site.get(f"/jobs/{job.id}")


async def test_hostile_text_is_shown_and_never_becomes_part_of_the_page(site: Site) -> None:
    page = await show_everywhere(site, HOSTILE)
    assert page.text.count(HOSTILE) >= len(IN_THE_JOB) + len(IN_THE_REPORT) + 4
    for shown in (page, await site.get("/jobs")):
        assert HOSTILE in shown.text
        assert not {"script", "img", "b"} & {tag for tag, _ in shown.tags}
        assert not [attrs for _, attrs in shown.tags if any(name.startswith("on") for name in attrs)]


async def test_characters_that_nobody_sees_are_written_out(site: Site) -> None:
    page = await show_everywhere(site, "a\u202eb\u200bc\x1b]8;;x\x07d\x00e")
    for char in "\u202e\u200b\x1b\x07\x00":
        assert char not in page.html
    assert "a⟨U+202E⟩b⟨U+200B⟩c⟨U+001B⟩]8;;x⟨U+0007⟩d⟨U+0000⟩e" in page.text


async def test_no_secret_is_on_any_page(site: Site) -> None:
    page = await show_everywhere(site, f"before {SECRET} after")
    await site.note_outage("gpu-1", f"refused {SECRET}")
    patch = await site.get("/jobs/0123456789/patch")
    for text in (page.text, patch.text, str(await site.status())):
        assert "[redacted]" in text
        assert SECRET not in text


async def test_a_log_is_readable_whatever_bytes_are_in_it(site: Site) -> None:
    job = await site.add(state=JobState.SUCCEEDED)
    await site.keep_log(job, "agent", b"\xff\xfe caf\xc3\xa9 \x1b[1;31mFAILED\x1b[0m\x1b[2K <b>tests</b>\n")
    assert "\ufffd\ufffd café FAILED <b>tests</b>" in (await site.get(f"/jobs/{job.id}")).text


async def test_a_running_job_shows_its_log_as_far_as_it_has_come(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING)
    for chunk in (b"at work\n", b"still at work\n"):
        site.spool.append(job.id, "agent", chunk)
        assert chunk.decode() in (await site.get(f"/jobs/{job.id}")).text


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "spool"])
async def test_of_a_long_log_the_end_is_shown_and_no_half_of_a_secret(tmp_path: Path, kept: bool) -> None:
    secret = "".join(f"{number:04}-" for number in range(400))
    for cut in (0, 700, len(secret)):
        log = b"first\n" + secret.encode() + b"x" * (SHOWN_LOG + MARGIN - len(secret) + cut - 5) + b"\nlast\n"
        async with open_site(tmp_path / str(cut), secrets=(secret,)) as site:
            job = await site.add(state=JobState.RUNNING)
            if kept:
                await site.keep_log(job, "agent", log)
            else:
                site.spool.append(job.id, "agent", log)
            page = await site.get(f"/jobs/{job.id}")
        assert LEFT_OUT.strip() in page.text
        assert "first" not in page.text
        assert "x\nlast\n" in page.text
        assert "0399-" not in page.text
        assert SHOWN_LOG - 100 < page.text.count("x") < SHOWN_LOG + MARGIN


async def test_a_log_that_fits_is_shown_from_its_beginning(site: Site) -> None:
    job = await site.add(state=JobState.SUCCEEDED)
    await site.keep_log(job, "agent", b"first\n" + b"x" * (SHOWN_LOG - 6))
    page = await site.get(f"/jobs/{job.id}")
    assert "first\nx" in page.text
    assert LEFT_OUT.strip() not in page.text


PATHS = ("/", "/jobs", "/jobs/0123456789", "/jobs/0123456789/patch", "/jobs/nobody", "/jobs/nobody/patch")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", PATHS)
async def test_every_page_may_load_and_run_only_our_own_files(site: Site, path: str, method: str) -> None:
    await site.add(make_report(), state=JobState.SUCCEEDED)
    page = await site.get(path, method)
    policy = page.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "form-action 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Referrer-Policy"] == "same-origin", "the address of a private job must not leak"
    assert page.headers["Cache-Control"] == "no-store"
    assert bool(page.html) == (method == "GET")


STRANGE = ("/jobs/%00", "/jobs/..%2Fstatus", "/jobs/'%20OR%201=1", "/templates", "/static/..%2Fpages.py", "/static/.")
LONG = f"/static/{'a' * 300}"


@pytest.mark.parametrize("path", ["/jobs/nobody", "/jobs/nobody/patch", *STRANGE, LONG])
async def test_what_is_not_there_is_404(site: Site, path: str) -> None:
    await site.add()
    assert (await site.get(path)).status == 404


async def test_a_job_without_a_diff_has_no_patch(site: Site) -> None:
    await site.add(make_report(patch=""), state=JobState.SUCCEEDED)
    page = await site.get("/jobs/0123456789/patch")
    assert (page.status, page.text) == (404, "this job has no patch\n")
    assert not [link for link in (await site.get("/jobs/0123456789")).links() if link.endswith("/patch")]


async def test_pages_are_for_reading_only(site: Site) -> None:
    for path in PATHS:
        assert (await site.get(path, "POST")).status == 405


async def test_links_hold_behind_a_proxy_that_serves_the_service_as_a_folder(tmp_path: Path) -> None:
    async with open_site(tmp_path, "https://example.org/ptq") as site:
        await site.add(make_report(), state=JobState.SUCCEEDED)
        links = (await site.get("/jobs/0123456789")).links() + (await site.get("/jobs")).links()
    assert {"/ptq/static/style.css", "/ptq/jobs", "/ptq/jobs/0123456789", "/ptq/jobs/0123456789/patch"} <= set(links)
    assert [link for link in links if not link.startswith(("/ptq/", "#"))] == []


async def test_the_style_sheet_is_there(site: Site) -> None:
    style = await site.get("/static/style.css")
    assert style.status == 200
    assert style.headers["Content-Type"].startswith("text/css")
    assert "prefers-color-scheme: dark" in style.html
    assert not [state for state in JobState if f".{state} {{ display" in style.html], "states are classes, too"


async def test_the_status_counts_machines_jobs_and_deliveries(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING, machine="gpu-1")
    await site.add(id="another", thread=8)
    await site.add(id="ended", thread=9, state=JobState.FAILED)
    async with site.database.write() as connection:
        await job_rows.insert_lease(connection, Lease("gpu-1", 0, job.id), NOON)
    await site.note_outage("gpu-2", "the host key has changed")
    noon = NOON.isoformat()
    assert await site.status() == {
        "machines": [
            {
                **{"name": "gpu-1", "slots": 2, "leased": 1, "trouble": None, "drained_since": None},
                **{"out_since": None, "has": None},
            },
            {
                **{"name": "gpu-2", "slots": 1, "leased": 0, "trouble": "the host key has changed"},
                **{"drained_since": None, "out_since": noon, "has": None},
            },
        ],
        "jobs": {"queued": 1, "running": 1},
        "deliveries": {"pending": 0, "failed": 0},
        "replies": {"waiting": 0, "abandoned": 0, "reasons": {}},
        "held_labels": 0,
        "pauses": 0,
    }


async def test_the_status_tells_what_machines_have_without_the_names_of_single_gpus(site: Site) -> None:
    gpu = Gpu("nvidia", "GPU-one-of-a-kind", ("nvidia0",), f"H200 {SECRET}", 143771, "580.95")
    async with site.database.write() as connection:
        await save_inventory(connection, "gpu-1", Inventory((gpu,), "it broke", 5, 10, None), NOON)
        await save_strangers(connection, "gpu-1", ["00000000aa"])
    first, second = (await site.status())["machines"]
    assert second["has"] is None
    assert first["has"] == {
        "gpus": [{"name": "H200 [redacted]", "memory_mib": 143771, "driver": "580.95"}],
        "gpu_trouble": "it broke",
        "disk": {"free_bytes": 5, "total_bytes": 10},
        "free_inodes": None,
        "unknown_job_folders": 1,
        "seen_at": NOON.isoformat(),
    }


async def add_report(site: Site, job: Job, **changes: Any) -> None:
    report = casebook.draft_reply(f"report of {job.id}", "report", job, "Fixed.", NOON)
    async with site.database.write() as connection:
        await casebook.insert_reply(connection, replace(report, **changes))


async def test_what_did_not_reach_github_stands_on_the_page_of_its_job_with_the_reason(site: Site) -> None:
    await add_report(site, await site.add(id="waits"), trouble="the issue is locked")
    await add_report(site, await site.add(id="lost", thread=8), abandoned="the issue was deleted")
    await add_report(site, await site.add(id="posted", thread=9), comment_id=1, posted_body="Fixed.")
    assert "Its report waits: the issue is locked." in (await site.get("/jobs/waits")).text
    assert "Its report was given up: the issue was deleted." in (await site.get("/jobs/lost")).text
    assert "Its report" not in (await site.get("/jobs/posted")).text


async def test_the_status_counts_what_did_not_reach_github_by_account_and_names_no_repository(site: Site) -> None:
    for number in range(2):
        job = await site.add(id=f"waits{number}", thread=number, private=True, repository="octo/hidden")
        await add_report(site, job, trouble="the issue is locked")
    await add_report(site, await site.add(id="new"))
    await add_report(
        site, await site.add(id="lost", repository="acme/x"), abandoned="the issue was deleted", final=True
    )
    await add_report(site, await site.add(id="posted", thread=9), comment_id=1, posted_body="Fixed.")
    status = await site.status()
    reasons = {"octo": {"the issue is locked": 2}, "acme": {"the issue was deleted": 1}}
    assert status["replies"] == {"waiting": 3, "abandoned": 1, "reasons": reasons}
    assert "hidden" not in str(status)


async def test_a_drained_machine_is_shown_as_such_and_nobody_is_named(site: Site) -> None:
    await site.drain("gpu-1")
    machine = (await site.status())["machines"][0]
    assert (machine["trouble"], machine["drained_since"]) == ("its operator has drained it", NOON.isoformat())
    page = await site.get("/jobs")
    assert "gpu-1 has been out of service since 2026-03-01 12:00 UTC: its operator has drained it" in page.text
    assert "gpu-2 has been" not in page.text
    assert "root" not in page.html + str(machine)


async def test_whether_the_service_is_ready_is_looked_up_at_most_once_a_second(site: Site) -> None:
    writes = 0

    @event.listens_for(site.database.engine.sync_engine, "begin")
    def count(connection: object) -> None:
        nonlocal writes
        writes += 1

    pages = await asyncio.gather(*(site.get("/readyz") for _ in range(20)), *(site.get("/readyz") for _ in range(20)))
    pages.append(await site.get("/readyz"))
    assert {page.status for page in pages} == {200}
    assert writes <= 2, "one look, with its two transactions"


async def test_the_service_is_ready_only_while_its_database_takes_writes(site: Site, tmp_path: Path) -> None:
    assert (await site.get("/readyz")).status == 200
    await asyncio.sleep(LASTS_S)
    await site.database.close()
    for path in tmp_path.glob("ptq.db*"):
        path.write_bytes(b"no database any more" * 1000)
    page = await site.get("/readyz")
    assert page.status == 503
    assert "the database is not writable" in page.html
    assert str(tmp_path) not in page.html
    assert (await site.get("/healthz")).status == 200, "the process lives all the same"


async def test_a_machine_that_is_gone_is_shown_as_long_as_something_runs_there(site: Site) -> None:
    job = await site.add(state=JobState.RUNNING)
    async with site.database.write() as connection:
        await job_rows.insert_lease(connection, Lease("gone", 0, job.id), NOON)
    (gone,) = (machine for machine in (await site.status())["machines"] if machine["name"] == "gone")
    assert (gone["slots"], gone["leased"]) == (0, 1)
    async with site.database.write() as connection:
        await job_rows.delete_lease(connection, job.id)
    assert "gone" not in [machine["name"] for machine in (await site.status())["machines"]]


@pytest.mark.slow
async def test_the_service_is_not_ready_while_its_inbox_is_full(site: Site) -> None:
    row = {"event": "issues", "lane": "octo/widgets#7", "body": b"{}", "received_at": NOON, "next_attempt_at": NOON}
    rows = [{"id": f"id-{number}", "state": "pending", "attempts": 0, **row} for number in range(MAX_PENDING)]
    async with site.database.write() as connection:
        await connection.execute(deliveries.insert(), rows[1:])
    assert (await site.get("/readyz")).status == 200
    await asyncio.sleep(LASTS_S)
    async with site.database.write() as connection:
        await connection.execute(deliveries.insert(), rows[:1])
    page = await site.get("/readyz")
    assert page.status == 503
    assert "the inbox is full" in page.html
    assert (await site.status())["deliveries"] == {"pending": MAX_PENDING, "failed": 0}


@pytest.mark.slow
async def test_a_huge_diff_is_shown_as_a_whole_and_in_linear_time(site: Site) -> None:
    took = []
    for number, lines in enumerate((50_000, 300_000)):
        patch, job_id = PATCH + "+a\n-b\n" * lines, f"{number:010x}"
        await site.add(make_report(job_id=job_id, patch=patch), id=job_id, thread=number + 1, state=JobState.SUCCEEDED)
        with no_garbage_collection():
            began = time.process_time()  # Of this process alone: other work on the machine does not count.
            page = await site.get(f"/jobs/{job_id}")
            took.append(time.process_time() - began)
        assert patch in page.text
        assert len(page.tags) < 100
    assert took[1] < 12 * took[0], took


@pytest.mark.slow
def test_a_long_text_is_escaped_like_a_short_one_and_lets_others_run_meanwhile() -> None:
    text = "a<b>&'\"" * 1_500_000
    assert escape_in_pieces(text) == escape(text)
    assert escape_in_pieces(escape(text)) == escape(text)
    at_once = measure_longest_call(lambda: escape(text))
    assert measure_longest_call(lambda: escape_in_pieces(text)) < 0.7 * at_once  # To join the pieces takes 0.45.
