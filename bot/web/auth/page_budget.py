"""Limits how often pages ask GitHub about people's access, so that enough calls are left for the service's own work."""

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
"""The pages of one person may ask GitHub `CALLS_OF_PERSON` questions in an hour, and `CALLS_PER_REPOSITORY` more for
each configured repository, because a list asks about all repositories."""

MOST_PEOPLE = 10_000

REFRESH_S = 10
"""The seconds between two refreshes of an open list, if a refresh asks GitHub nothing."""

FOR_REFRESHING = 0.5
"""The part of a person's questions that the refreshes of one open list may use."""


def find_refresh_s(repositories: int, calls_of_person: int) -> int:
    """The seconds between two refreshes of an open list that asks about this many repositories each time. Pure."""
    most = calls_of_person * FOR_REFRESHING
    return max(REFRESH_S, math.ceil(HOUR_S * repositories / most)) if most else int(HOUR_S)


class PageBudget:
    """Limits the questions of pages. This process counts a person's questions. GitHub counts an account's calls."""

    def __init__(
        self,
        list_left: ListLeft,
        now: Callable[[], datetime],
        *,
        calls_of_person: int = CALLS_OF_PERSON,
        people: int = MOST_PEOPLE,
    ) -> None:
        """`calls_of_person` is the number of questions that one person has in an hour."""
        self._list_left = list_left
        self._now = now
        self._calls_of_person = calls_of_person
        self._asked: TTLCache[str, list[int]] = TTLCache(people, HOUR_S, timer=lambda: now().timestamp())
        """The number of each person's questions, in a list of one. A person's hour begins with their first question."""

    def take(self, login: str, account: str) -> bool:
        """Whether somebody's page may ask about a repository of this account. If so, the question is counted."""
        return not self._is_short(account) and self.take_of_person(login)

    def take_of_person(self, login: str) -> bool:
        """Like `take`, but only with the person's limit, even if the account has no calls left for pages."""
        if self._has_asked_enough(login):
            return False
        self._asked.setdefault(login.casefold(), [0])[0] += 1
        return True

    def is_spent(self, login: str) -> bool:
        """Whether there are repositories about which somebody's pages may ask nothing now."""
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
