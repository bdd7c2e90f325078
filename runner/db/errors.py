"""Errors of the database, in words for the operator."""

from __future__ import annotations


class DatabaseError(Exception):
    """The database cannot be used. The message says why and what to do, and contains no password."""


class UnavailableDatabase(DatabaseError):  # noqa: N818 - a state
    """The database is unreachable or locked. This may be over soon."""


class OldDatabase(DatabaseError):  # noqa: N818 - a state
    """An earlier version made the database. `ptq-bot db upgrade` is needed."""


class NewDatabase(DatabaseError):  # noqa: N818 - a state
    """A newer version made the database."""


class ForeignDatabase(DatabaseError):  # noqa: N818 - a state
    """Another program's database."""


class NoDatabase(DatabaseError):  # noqa: N818 - a state
    """The database does not exist yet. The service creates it when it starts."""
