"""How often pages may ask GitHub about people's access, so that they leave the service what it needs itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime

from cachetools import TTLCache

from bot.github.limits import OUR_BUCKET, ListLeft

HOUR_S = 3600.0

KEPT_FOR_SERVICE = 0.5
"""The part of an installation's hourly limit that pages leave to the service's own work."""

CALLS_OF_PERSON, CALLS_PER_REPOSITORY = 300, 10
"""How many questions the pages of one person may ask in an hour: so many, and some more for each repository, because a
list asks about all of them."""

MOST_PEOPLE = 10_000

REFRESH_S = 10
"""How often an open list is refreshed, in seconds, if that asks GitHub nothing."""

FOR_REFRESHING = 0.5
"""The part of a person's questions that one open list may use."""


def find_refresh_s(repositories: int, calls_of_person: int) -> int:
    """The seconds between refreshes of an open list that asks about this many repositories each time. Pure."""
    most = calls_of_person * FOR_REFRESHING
    return max(REFRESH_S, math.ceil(HOUR_S * repositories / most)) if most else int(HOUR_S)


class PageBudget:
    """The questions of pages. Those of a person are counted in this process; those of an installation, by GitHub."""

    def __init__(
        self,
        list_left: ListLeft,
        now: Callable[[], datetime],
        *,
        calls_of_person: int = CALLS_OF_PERSON,
        people: int = MOST_PEOPLE,
    ) -> None:
        """`calls_of_person` are those that one person has in an hour."""
        self._list_left = list_left
        self._now = now
        self._calls_of_person = calls_of_person
        self._asked: TTLCache[str, list[int]] = TTLCache(people, HOUR_S, timer=lambda: now().timestamp())
        """A number for each person. The hour begins with the first question."""

    def take(self, login: str, account: str) -> bool:
        """Whether a page of somebody may ask about a repository of this account; if so, it counts."""
        return not self._is_short(account) and self.take_of_person(login)

    def take_of_person(self, login: str) -> bool:
        """The same, whatever is left to pages."""
        if self._has_asked_enough(login):
            return False
        self._asked.setdefault(login.casefold(), [0])[0] += 1
        return True

    def is_spent(self, login: str) -> bool:
        """Whether the pages of somebody may ask nothing now about some repositories."""
        return self._has_asked_enough(login) or any(self._is_short(account) for account, _ in self._list_left())

    def _has_asked_enough(self, login: str) -> bool:
        return self._asked.get(login.casefold(), [0])[0] >= self._calls_of_person

    def _is_short(self, account: str) -> bool:
        now = self._now()
        return any(
            left.calls < left.limit * KEPT_FOR_SERVICE
            for name, left in self._list_left()
            if name.casefold() == account.casefold() and left.bucket == OUR_BUCKET
            if left.resets_at is not None and now < left.resets_at
        )
