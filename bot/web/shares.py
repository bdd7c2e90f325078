"""How much of something scarce each reader may have: nobody takes all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class NoRoom(Exception):  # noqa: N818 - what is the case
    """This reader, or all readers together, have as much as they may."""


class Shares:
    """What readers have just now. Readers are known by their login; None stands for all who have not signed in."""

    def __init__(self, most: int, of_person: float, *, people_sign_in: bool) -> None:
        """`of_person` is a share of all. Where `people_sign_in`, half is kept for them: strangers cannot take it."""
        self._most = most
        self._most_of_strangers = most // 2 if people_sign_in else most
        self._most_of_person = int(most * of_person)
        self._taken: Counter[str | None] = Counter()

    @property
    def taken(self) -> int:
        """What all readers have together."""
        return self._taken.total()

    @contextmanager
    def take(self, login: str | None, amount: int = 1) -> Iterator[None]:
        """Let a reader have some for as long as this lasts. Raises `NoRoom`.

        A reader who has nothing yet may take more than a share, as long as all readers together stay within bounds.
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
            self._taken += Counter()  # Drops readers who have nothing any more.
