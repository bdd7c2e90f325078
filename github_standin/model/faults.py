"""Faults that a test or a demo injects into API requests and webhooks, by method, path or event name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, get_args

ApiWord = Literal["delay", "lose_answer", "reset"]
ApiKind = int | ApiWord
"""A status code to answer with; or `delay`: only wait; `lose_answer`: work, then cut the connection; `reset`: cut it
before working."""

WebhookKind = Literal["drop", "duplicate", "delay", "reorder"]
"""A delivery is lost (and counts as failed), arrives twice, arrives late, or arrives after the next one."""


@dataclass(slots=True)
class ApiFault:
    """A fault of the next `times` matching requests, after `delay_s` seconds."""

    method: str
    path_pattern: str
    kind: ApiKind
    times: int
    delay_s: float = 0.0
    message: str = "Server Error"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class WebhookFault:
    """A fault of the next `times` matching deliveries."""

    event_pattern: str
    kind: WebhookKind
    times: int
    delay_s: float = 0.0


class Faults:
    """The faults that are still to happen, in the order in which they were added."""

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
        """Add a fault for the next `times` matching requests. `*` in `method` and `path_pattern` matches anything.

        `path_pattern` is relative to the API's root, and not a regular expression. Raises ValueError for an
        unknown `kind`.
        """
        if isinstance(kind, str) and kind not in get_args(ApiWord):
            raise ValueError(f"{kind!r} is not one of {', '.join(get_args(ApiWord))}")
        self.api.append(ApiFault(method, path_pattern, kind, times, delay_s, message, headers or {}))

    def add_webhook(self, event_pattern: str, kind: WebhookKind, *, times: int = 1, delay_s: float = 0.0) -> None:
        """Add a fault for the next `times` deliveries with a matching name, such as `issue_comment.*`."""
        self.webhooks.append(WebhookFault(event_pattern, kind, times, delay_s))

    def take(self, method: str, path: str) -> ApiFault | None:
        """Take the fault of this request, if there is one."""
        for fault in self.api:
            if fault.times > 0 and fnmatchcase(method, fault.method) and fnmatchcase(path, fault.path_pattern):
                fault.times -= 1
                return fault
        return None

    def take_webhook(self, event: str) -> WebhookFault | None:
        """Take the fault of this delivery, if there is one."""
        for fault in self.webhooks:
            if fault.times > 0 and fnmatchcase(event, fault.event_pattern):
                fault.times -= 1
                return fault
        return None
