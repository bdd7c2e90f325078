"""Repositories that become private or public. If one becomes private, its jobs count as private from then on."""

from __future__ import annotations

import structlog
from sqlalchemy import func, select, update

from handlers.events import Repository
from handlers.ports import GitHub
from runner.db.database import Database
from runner.db.schema import jobs

log = structlog.get_logger()


async def renew(github: GitHub, name: str, repository: Repository) -> Repository:
    """A repository as it is now, if a delivery says that it is private.

    The delivery may be old, and the repository public by now. Raises what `fetch_repository` raises.
    """
    return await github.fetch_repository(name) if repository.private else repository


async def restrict_jobs(db: Database, repository: str) -> None:
    """Make all jobs of a repository private, because GitHub shows the repository as private.

    They stay private if the repository becomes public again, because nobody may have meant to publish them.
    """
    public = (func.lower(jobs.c.repository) == repository.lower(), ~jobs.c.private)
    async with db.read() as connection:
        if (await connection.execute(select(jobs.c.id).where(*public).limit(1))).one_or_none() is None:
            return
    async with db.write() as connection:
        changed = await connection.execute(update(jobs).where(*public).values(private=True))
    log.warning("repository.became_private", repository=repository, jobs=changed.rowcount)
