"""Mishaps that a test or a demo orders in advance, for API requests and for webhooks.

It refuses to know what a request means: it matches methods, paths and event names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, get_args

ApiWord = Literal["delay", "lose_answer", "reset"]
ApiKind = int | ApiWord
"""A status code to answer with instead; or only wait; or do it and cut the connection; or cut it before doing it."""

WebhookKind = Literal["drop", "duplicate", "delay", "reorder"]
"""Never arrives (and counts as failed); arrives twice; arrives late; arrives after the next one."""


@dataclass(slots=True)
class ApiFault:
    """A mishap of the next `times` requests that match; before it, `delay_s` seconds pass."""

    method: str
    path_pattern: str
    kind: ApiKind
    times: int
    delay_s: float = 0.0
    message: str = "Server Error"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class WebhookFault:
    """A mishap of the next `times` deliveries that match."""

    event_pattern: str
    kind: WebhookKind
    times: int
    delay_s: float = 0.0


class Faults:
    """The mishaps that are still to happen; each happens in the order it was added."""

    def __init__(self) -> None:
        self.api: list[ApiFault] = []
        self.webhooks: list[WebhookFault] = []

    def add(
        self,
        method: str,
        path_pattern: str,
        kind: ApiKind,
        *,
        times: int = 1,
        delay_s: float = 0.0,
        message: str = "Server Error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Spoil the next `times` requests that match: `*` in `method` and `path_pattern` fits anything.

        `path_pattern` is below the API's root and no regular expression; raises ValueError for an unknown `kind`.
        """
        if isinstance(kind, str) and kind not in get_args(ApiWord):
            raise ValueError(f"{kind!r} is none of {', '.join(get_args(ApiWord))}")
        self.api.append(ApiFault(method, path_pattern, kind, times, delay_s, message, headers or {}))

    def add_webhook(self, event_pattern: str, kind: WebhookKind, *, times: int = 1, delay_s: float = 0.0) -> None:
        """Spoil the next `times` deliveries whose name (such as `issue_comment.created`, `*` fits anything) matches."""
        self.webhooks.append(WebhookFault(event_pattern, kind, times, delay_s))

    def take(self, method: str, path: str) -> ApiFault | None:
        """The mishap that this request meets; it is used up."""
        for fault in self.api:
            if fault.times > 0 and fnmatchcase(method, fault.method) and fnmatchcase(path, fault.path_pattern):
                fault.times -= 1
                return fault
        return None

    def take_webhook(self, event: str) -> WebhookFault | None:
        """The mishap that this delivery meets; it is used up."""
        for fault in self.webhooks:
            if fault.times > 0 and fnmatchcase(event, fault.event_pattern):
                fault.times -= 1
                return fault
        return None
