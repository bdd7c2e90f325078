"""Rows of people's messages to agents (`runner.model.telling`). Every function takes its caller's transaction."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runner.db.schema import tellings
from runner.db.sql import insert_new
from runner.model.telling import Telling


async def insert_telling(connection: AsyncConnection, telling: Telling) -> None:
    """Store a message, unless the job has one with the same occasion or number."""
    await insert_new(connection, tellings, asdict(telling))


async def fetch_tellings(connection: AsyncConnection, job_id: str) -> list[Telling]:
    """The messages to a job's agent, in order."""
    query = select(tellings).where(tellings.c.job_id == job_id).order_by(tellings.c.number)
    return [Telling(**row._mapping) for row in await connection.execute(query)]


async def note_given(connection: AsyncConnection, job_id: str, up_to: int, now: datetime) -> None:
    """Record that the agent has got the messages up to this number, and no later ones."""
    others = (tellings.c.job_id == job_id, tellings.c.number > up_to)
    await connection.execute(update(tellings).where(*others).values(given_at=None))
    new = (tellings.c.job_id == job_id, tellings.c.number <= up_to, tellings.c.given_at.is_(None))
    await connection.execute(update(tellings).where(*new).values(given_at=now))


async def copy_tellings(connection: AsyncConnection, source: str, job_id: str) -> None:
    """Copy the messages of a job (`source`) to the job that replaces it. The new job's agent has not got them yet."""
    for telling in await fetch_tellings(connection, source):
        await insert_telling(connection, replace(telling, job_id=job_id, given_at=None))
