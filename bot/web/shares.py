"""Divides a limited resource among readers, so that nobody can take all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class NoRoom(Exception):  # noqa: N818 - what is the case
    """This reader, or all readers together, have reached their limit."""


class Shares:
    """Counts the current use by login. The login None stands for everybody who is not signed in."""

    def __init__(self, most: int, of_person: float, *, people_sign_in: bool) -> None:
        """`of_person` is the part of `most` that one person can use.

        With `people_sign_in`, half of `most` is reserved for signed-in people.
        """
        self._most = most
        self._most_of_strangers = most // 2 if people_sign_in else most
        self._most_of_person = int(most * of_person)
        self._taken: Counter[str | None] = Counter()

    @property
    def taken(self) -> int:
        """The total use."""
        return self._taken.total()

    @contextmanager
    def take(self, login: str | None, amount: int = 1) -> Iterator[None]:
        """Reserve an amount for a reader while the context lasts. Raises `NoRoom`.

        A reader's first reservation may exceed their share, if the total stays within the limit. The only reservation
        may exceed both.
        """
        most = self._most_of_strangers if login is None else self._most_of_person
        held = self._taken[login]
        if (held and held + amount > most) or (self.taken and self.taken + amount > self._most):
            raise NoRoom
        self._taken[login] += amount
        try:
            yield
        finally:
            self._taken[login] -= amount
            self._taken += Counter()  # Drops readers with nothing reserved.
