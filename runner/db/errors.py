"""What can be wrong with a database, in words for the operator."""

from __future__ import annotations


class DatabaseError(Exception):
    """The database cannot be used; the message says why and what to do, and holds no password."""


class UnavailableDatabase(DatabaseError):  # noqa: N818 - says what it is
    """It cannot be reached, or somebody blocks it: a moment later that may be over."""


class OldDatabase(DatabaseError):  # noqa: N818 - says what it is
    """An earlier version made the database: `ptq-bot db upgrade` is needed."""


class NoDatabase(DatabaseError):  # noqa: N818 - says what it is
    """There is none yet: a service makes it when it starts."""
