"""What operators do on pages instead of at the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from handlers.cases import casebook
from runner.model.job import JobKind, JobState
from runner.rows import job_rows
from runner.rows.machine_states import fetch_machine_states
from runner.rows.pauses import EVERYWHERE, fetch_pauses
from tests.support.dashboard import Dashboard, open_dashboard
from tests.support.visitor import NAME

PATHS = (
    "/pause",
    "/resume",
    "/machines/gpu-1/drain",
    "/machines/gpu-1/resume",
    "/jobs/ended00001/clean",
    "/jobs/ended00001/lift",
)


async def list_pauses(dashboard: Dashboard) -> list[str]:
    async with dashboard.database.read() as connection:
        return sorted(pause.repository for pause in await fetch_pauses(connection))


async def test_an_operator_pauses_and_drains_on_the_overview_and_nobody_else_does(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        async with dashboard.browser("alice") as alice:
            await alice.visit("/")
            assert not any(map(alice.offers, PATHS))
            csrf = alice.fields("/sign-out")["csrf"]
            for path in PATHS:
                assert (await alice.send(path, {"csrf": csrf, "repository": NAME})).status == 404
            assert await list_pauses(dashboard) == []
        async with dashboard.browser("root") as root:
            for where in (EVERYWHERE, NAME):
                await root.visit("/")
                await root.fill_in("/pause", {"repository": where})
            assert await list_pauses(dashboard) == [EVERYWHERE, NAME]
            assert "Paused just now, everywhere" in root.page.text
            assert (await root.fill_in("/pause", {"repository": "octo/none"})).status == 404
            await root.visit("/")
            await root.fill_in("/resume", {"repository": EVERYWHERE})
            assert await list_pauses(dashboard) == [NAME]
            await root.fill_in("/machines/gpu-1/drain")
            async with dashboard.database.read() as connection:
                assert (await fetch_machine_states(connection))["gpu-1"].drained_by == "root"
            await root.fill_in("/machines/gpu-1/resume")
            assert root.offers("/machines/gpu-1/drain")


async def test_an_operator_renames_a_task_and_deletes_logs_on_its_page(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard, dashboard.browser("root") as root:
        job = await dashboard.add(
            id="ended00001", state=JobState.FAILED, kind=JobKind.TASK, series=1, name="task1", thread=None
        )
        async with dashboard.database.write() as connection:
            await job_rows.save_log(connection, job.id, "agent", job_rows.compress_log(b"much\n"))
        path = f"/jobs/{job.id}"
        await root.visit(path)
        assert (await root.fill_in(f"{path}/rename", {"name": "no name"})).status == 409
        await root.visit(path)
        await root.fill_in(f"{path}/rename", {"name": "chunks"})
        assert f"{NAME}~chunks" in root.page.text
        assert "much" in root.page.text
        await root.fill_in(f"{path}/clean")
        assert "much" not in root.page.text


@pytest.mark.slow
async def test_an_operator_lifts_what_keeps_an_issue_confidential_on_the_page_of_a_job(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        job = await dashboard.add(id="ended00001", state=JobState.FAILED)
        path = f"/jobs/{job.id}"
        async with dashboard.browser("root") as root, dashboard.browser("alice") as alice:
            await root.visit(path)
            assert not root.offers(f"{path}/lift")
            async with dashboard.database.write() as connection:
                case = await casebook.fetch_case(connection, job.case_key)
                assert case
                await casebook.save_case(connection, replace(case, confidential=True))
            await alice.visit(path)
            assert not alice.offers(f"{path}/lift")
            assert (await alice.send(f"{path}/lift", {"csrf": alice.fields("/sign-out")["csrf"]})).status == 404
            await root.visit(path)
            form = root.fields(f"{path}/lift")
            await root.fill_in(f"{path}/lift")
            assert "confidentiality of the issue lifted by @root" in root.page.text
            assert not root.offers(f"{path}/lift")
            assert (await root.send(f"{path}/lift", form)).status == 409
