"""Jobs and databases to start a test from."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.changes.concerns import is_withheld
from runner.db import upgrades
from runner.db.database import Database
from runner.db.schema import installation
from runner.model.job import Job, JobKind, JobState, Report
from runner.model.telling import Telling
from runner.rows import job_rows

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def make_job(**changes: Any) -> Job:
    """A job of an issue, of the kind that its preset has; with a `series`, one without an issue."""
    preset = str(changes.get("preset", "fix"))
    values: dict[str, Any] = {
        "id": "0123456789",
        "repository": "octo/widgets",
        "private": False,
        "kind": JobKind(preset) if preset in set(JobKind) else JobKind.AGENT,
        "thread": None if "series" in changes else 7,
        "issue_title": "" if "series" in changes else "It breaks",
        "attempt": 1,
        "preset": preset,
        "may_change": True,
        "agent": "mine",
        "requested_by": "maintainer",
        "clone_url": "https://git.example/octo/widgets.git",
        "base_branch": "main",
        "prompt": "Please look at it.",
        "state": JobState.QUEUED,
        "created_at": NOON,
        "changed_at": NOON,
        "requested_at": NOON,
    }
    return Job(**{**values, **changes})


def make_telling(**changes: Any) -> Telling:
    """What a maintainer has told the agent of `make_job`."""
    values: dict[str, Any] = {
        "job_id": "0123456789",
        "number": 1,
        "occasion": f"comment {changes.get('number', 1)}",
        "told_by": "maintainer",
        "told_at": NOON,
        "words": "Look at the loop.",
        "message": f"message {changes.get('number', 1)}\n",
    }
    return Telling(**{**values, **changes})


@asynccontextmanager
async def open_database(where: Path | str) -> AsyncIterator[Database]:
    """The database with this URL, or the one of SQLite in this folder."""
    database = Database(f"sqlite+aiosqlite:///{where / 'ptq.db'}" if isinstance(where, Path) else where)
    if database.is_embedded and not database.file.exists():
        database.file.write_bytes(make_template())
    try:
        await database.open()
        yield database
    finally:
        await database.close()


@cache
def make_template() -> bytes:
    """A new database of SQLite: every test has its own, but not every test has to make the tables."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        upgrades.create(connection)
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.commit()
        return driver.serialize()


def write_database(file: Path) -> None:
    """A new database of SQLite's, for a service: no two have one secret, or jobs of theirs could have one id."""
    file.write_bytes(make_template())
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"UPDATE {installation.name} SET secret = ?", [secrets.token_bytes(32)])


SPELLED = (
    "\uff53\uff45\uff43\uff55\uff52\uff49\uff54\uff59 \uff43\uff4f\uff4e\uff43\uff45\uff52\uff4e",
    "secu\u00adrity conc\u00adern",
    "s&#101;c&#117;rity c&#111;nc&#101;rn",
    "se<b>cu</b>rity con<b>ce</b>rn",
    "se**cu**rity con**ce**rn",
    "\U0001d42c\U0001d41e\U0001d41c\U0001d42e\U0001d42b\U0001d422\U0001d42d\U0001d432 "
    "\U0001d41c\U0001d428\U0001d427\U0001d41c\U0001d41e\U0001d42b\U0001d427",
)
"""Reports with a security concern in which a plain search does not find the words."""


async def store_report(connection: AsyncConnection, report: Report) -> None:
    """Store a report as the end of its job does."""
    job = await job_rows.fetch_job(connection, report.job_id)
    await job_rows.insert_report(connection, report, withheld=job is not None and is_withheld(job, report))
