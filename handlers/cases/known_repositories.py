"""Knows each repository by the number that GitHub gives it, because a name can pass to another repository.

A name keeps the number that it had when the service first used it. It keeps the number even if the configuration no
longer has the name, because its jobs and their pages stay. Only an operator can accept another repository under that
name. A name that is not in the configuration gets no number. Otherwise a stranger could create a repository with the
name before the repository that is meant exists.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy import bindparam, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.ports import GitHubUnavailable
from runner.db.database import Database
from runner.db.errors import DatabaseError
from runner.db.schema import known_repositories
from runner.db.sql import insert_new


class KnownRepositories(Protocol):
    """The numbers of the repositories that were used before."""

    async def find(self, name: str) -> int | None:
        """The number of a repository. None if it was not used before. Raises `GitHubUnavailable`."""

    async def note(self, name: str, number: int) -> int:
        """Store the number of a repository, unless it has one. Returns the stored one, or `number` if none is stored.

        Raises `GitHubUnavailable`.
        """


class OwnRepositories:
    """`KnownRepositories` in memory, for a program that is the only client of its App, or that must store nothing."""

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        """`known` has names in lower case."""
        self._numbers = dict(known or {})

    async def find(self, name: str) -> int | None:
        """The number of a repository."""
        return self._numbers.get(name.lower())

    async def note(self, name: str, number: int) -> int:
        """Keep the number of a repository in memory."""
        return self._numbers.setdefault(name.lower(), number)


class SharedRepositories:
    """`KnownRepositories` in the database. GitHub is not asked about a repository if the database cannot be read."""

    def __init__(self, db: Database, names: Callable[[], Container[str]]) -> None:
        """`names` returns the names in the current configuration, in lower case. Only their numbers are stored."""
        self._db = db
        self._names = names

    async def find(self, name: str) -> int | None:
        """The number of a repository. It is read each time, because an operator may have accepted another one."""
        with _as_unavailable(self._db):
            async with self._db.read() as connection:
                return await fetch_number(connection, name)

    async def note(self, name: str, number: int) -> int:
        """Store the number of a repository. If several replicas do this, the first number is kept."""
        with _as_unavailable(self._db):
            if name.lower() not in self._names():
                return await self.find(name) or number
            async with self._db.write() as connection:
                await insert_new(connection, known_repositories, {"name": name.lower(), "number": number})
                return await fetch_number(connection, name) or number


@contextmanager
def _as_unavailable(db: Database) -> Iterator[None]:
    try:
        with db.explaining():
            yield
    except DatabaseError as error:
        raise GitHubUnavailable(str(error)) from None


_NUMBER = select(known_repositories.c.number).where(known_repositories.c.name == bindparam("name"))


async def fetch_number(connection: AsyncConnection, name: str) -> int | None:
    """The number of a repository. None if it was not used before."""
    return (await connection.execute(_NUMBER, {"name": name.lower()})).scalar_one_or_none()


async def fetch_numbers(connection: AsyncConnection) -> dict[str, int]:
    """The numbers of all repositories that were used before, by name in lower case."""
    rows = await connection.execute(select(known_repositories.c.name, known_repositories.c.number))
    return {row.name: row.number for row in rows}


async def forget_number(connection: AsyncConnection, name: str) -> bool:
    """Delete the number of a name, so that its next use stores one again. False if none is stored."""
    forgotten = await connection.execute(delete(known_repositories).where(known_repositories.c.name == name.lower()))
    return forgotten.rowcount > 0
