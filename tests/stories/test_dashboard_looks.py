"""Every page of the dashboard in a real Chromium: in light and dark, on a phone, a desk and a wide screen."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from handlers.text.repros import THE_ISSUE
from runner.checks.verification import CheckKind, CheckRun, Side
from runner.db.schema import deliveries
from runner.model.inventory import Inventory
from runner.model.job import JobState
from runner.model.jobd_answers import Worklog
from runner.model.machines import Gpu, Lease, Outage
from runner.rows import job_rows
from runner.rows.check_rows import add_checks, fetch_checks, save_runs
from runner.rows.machine_states import save_inventory, save_outage
from runner.rows.worklogs import save_worklog
from tests.support.browser import find_faults, open_page, show_parts, unfold
from tests.support.dashboard import Dashboard, open_dashboard
from tests.support.meters import make_meter
from tests.support.site import PATCH, make_report
from tests.support.visitor import NAME

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]

REPORT = """**Outcome:** fix staged

## What was wrong

The last chunk was dropped by `range(0, len(items) - size, size)`, as [the documents](https://docs.example/) say.

| case | before | after |
| --- | ---: | ---: |
| a very long name of a case that does not end before the table has to scroll | 4 | 5 |

> It is so since the first commit.

```
assert chunks([1, 2, 3], 2) == [[1, 2], [3]]  # a line of code that is longer than any phone is wide, and goes on
```
"""
LOG = (
    b"""{"type": "text", "text": "I look."}
Traceback (most recent call last): /a/very/long/path/without/any/place/to/break/"""
    + b"x" * 200
    + b"""\n"""
)
STAGE_LOG = (
    b"\x1e[Fetching the repository.]\n\x1e$ git --git-dir=/a/long/path/" + b"x" * 200 + b" fetch\nFrom a place\n"
    b"\x1e[Check 1 with the changed text, while the base's code runs, run 1 of 2.]\nAssertionError: 4\n"
    b"\x1e[Check 1 with the changed text, while the base's code runs, run 2 of 2.]\nAssertionError: 4\n"
)
MORE = """\
diff --git a/tests/test_a_module_with_a_long_name_that_goes_on.py b/tests/test_a_module_with_a_long_name_that_goes_on.py
new file mode 100644
index 0000000..6e9e73f
--- /dev/null
+++ b/tests/test_a_module_with_a_long_name_that_goes_on.py
@@ -0,0 +1,3 @@
+from chunks import chunks
+
+assert chunks([1, 2, 3], 2) == [[1, 2], [3]]
diff --git a/run.sh b/run.sh
old mode 100644
new mode 100755
"""
AGENTS_CHECK = (CheckKind.AGENT, "", "print(chunks([1], 2))\n")
FAILS = CheckRun(1, False, "Traceback (most recent call last):\nAssertionError: [[1, 2]]\n")
RUNS = {Side.BASE: (FAILS,) * 3, Side.CHANGED: (CheckRun(0, False, ""),) * 3}
RUNNING, ENDED = "runs000001", "ended00001"
GPU = Gpu("nvidia", "GPU-1", ("nvidia0",), "NVIDIA H200", 143_771, "570.1")
REASON = "the machine does not answer: ssh: connect to host gpu.internal port 22: No route to host"


async def fill(dashboard: Dashboard) -> None:
    """Somebody's jobs, running, waiting and ended, on a machine in trouble; and deliveries."""
    now = dashboard.clock()
    await dashboard.github.open_issue(NAME, "Broken", "It is.", by="bob")
    await dashboard.add(id="waits00001", thread=2, trouble="its machine is out: " + REASON)
    await dashboard.add(id=RUNNING, thread=3, state=JobState.RUNNING, machine="gpu-1", skills=("review", "bench"))
    await dashboard.add(
        id="failed0001", thread=4, state=JobState.FAILED, started_at=now, failure="the agent stopped: " + REASON
    )
    report = make_report(
        job_id=ENDED, body=REPORT, worklog="- I looked.\n", repro="print(chunks([1], 2))\n", refusals=(REASON,)
    )
    patch = PATCH.replace("items = 5", f"items = 5  # {'so ' * 60}") + MORE
    report = replace(report, patch=patch, warnings=(REASON,))
    await dashboard.add(report, id=ENDED, thread=1, state=JobState.SUCCEEDED, machine="gpu-1", ended_at=now)
    dashboard.spool.append(RUNNING, "prepare", STAGE_LOG)
    dashboard.spool.append(RUNNING, "agent", LOG)
    row = {"lane": f"{NAME}#7", "body": b"{}", "received_at": now, "next_attempt_at": now}
    has = Inventory((GPU,), None, free_bytes=10**12, total_bytes=2 * 10**12, free_inodes=None, sealed=True)
    async with dashboard.database.write() as connection:
        for number, state in enumerate(("failed", "done", "pending")):
            values = {"id": f"{number}2345678-9abc-11f0-8def-0123456789ab", "state": state, "attempts": number}
            error = REASON if state == "failed" else None
            await connection.execute(deliveries.insert().values(event="issue_comment", error=error, **values, **row))
        await save_worklog(
            connection, RUNNING, Worklog("1", f"## Look\n\n```\n{'long ' * 60}\n```\n" * 500, is_cut=True)
        )
        for job_id, steps in ((RUNNING, ("preparing", "running")), (ENDED, ("preparing", "running", "succeeded"))):
            for minutes, what in enumerate(steps, 1):
                await job_rows.add_event(connection, job_id, now + timedelta(minutes=minutes), what, JobState(what))
            await job_rows.save_meter(
                connection, make_meter(job_id, turns=7, cost_usd=1.5, model="a-model-with-a-long-name-4")
            )
        for job_id in (ENDED, "failed0001"):
            for stage, text in (("agent", LOG), ("check", STAGE_LOG)):
                await job_rows.save_log(connection, job_id, stage, job_rows.compress_log(text))
        await add_checks(connection, ENDED, [(CheckKind.ISSUE, THE_ISSUE, "import chunks\n"), AGENTS_CHECK])
        first, second = await fetch_checks(connection, ENDED)
        await save_runs(connection, replace(first, runs=RUNS))
        await save_runs(connection, replace(second, runs={Side.BASE: (FAILS,) * 3}, trouble=REASON))
        await job_rows.insert_lease(connection, Lease("gpu-1", 0, RUNNING), now)
        await save_inventory(connection, "gpu-1", has, now)
        await save_outage(connection, "gpu-1", Outage(REASON, False, now, now, now))


async def be_root(page: Page) -> None:
    """Say on GitHub's page who one is."""
    await page.get_by_role("button", name=re.compile("root$")).click()


async def look(page: Page, name: str) -> list[str]:
    """What is wrong with the page, with everything on it unfolded."""
    await unfold(page)
    return await find_faults(page, name)


async def test_every_page_can_be_read_and_used(tmp_path: Path, browser: Browser) -> None:
    pages = {
        "overview": "/",
        "jobs": "/jobs",
        "running": f"/jobs/{RUNNING}",
        "ended": f"/jobs/{ENDED}",
        "ended-sides": f"/jobs/{ENDED}?view=split#diff",
        "failed": "/jobs/failed0001",
        "launch": "/launch",
        "note": f"/jobs/{ENDED}/note",
        "missing": "/jobs/nothing",
        "deliveries": "/deliveries",
        "spend": "/spend",
    }
    async with open_dashboard(tmp_path) as dashboard:
        await fill(dashboard)
        dashboard.github.set_permission(NAME, "root", "write")
        async with open_page(browser, is_refused=True) as page:
            faults = []
            await page.goto(f"{dashboard.url}/jobs/nothing")
            faults += await look(page, "stranger")
            await page.goto(f"{dashboard.url}/sign-in?next=/")
            await be_root(page)
            for name, path in pages.items():
                await page.goto(dashboard.url + path)
                if name == "note":
                    await be_root(page)
                    await expect(page.get_by_label("Your note")).to_be_focused()
                if name == "running":
                    await expect(page.get_by_role("log", name="agent")).to_contain_text("I look.")
                if "#" not in path:
                    await show_parts(page)
                faults += await look(page, name)
            await page.goto(f"{dashboard.url}/launch")
            await page.get_by_label("Issue", exact=True).fill("4711")
            await page.get_by_role("button", name="Launch").click()
            await expect(page.get_by_role("alert")).to_be_visible()
            faults += await look(page, "refused")
            await page.goto(f"{dashboard.url}/jobs/{ENDED}/note")
            await page.get_by_label("Your note").fill("lgtm")
            await page.get_by_role("button", name="Post the note").click()
            await expect(page.get_by_role("alert")).to_contain_text("too short")
            faults += await look(page, "note-refused")
            await page.context.clear_cookies()
            await page.get_by_role("button", name="Post the note").click()
            await expect(page.get_by_role("alert")).to_contain_text("Your session has ended")
            faults += await look(page, "session-ended")
            assert not faults, "\n".join(faults)
