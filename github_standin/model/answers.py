"""The result of a request: an answer, or a refusal with GitHub's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DOCUMENTATION = "https://docs.github.com/rest"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a JSON-ready body; None for no body."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Refusal(Exception):  # noqa: N818
    """A refused request: a status of 400 or more, a message, and the `errors` of a failed validation."""

    def __init__(
        self,
        status: int,
        message: str,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message
        self.errors = errors
        self.headers = headers or {}

    def answer(self) -> Answer:
        """The refusal as a response (schemas `basic-error` and `validation-error`)."""
        errors = {"errors": [dict(error) for error in self.errors]} if self.errors else {}
        body = {"message": self.message, **errors, "documentation_url": DOCUMENTATION, "status": str(self.status)}
        return Answer(self.status, body, self.headers)


def created(body: Mapping[str, Any]) -> Answer:
    """A response with a new object and its address."""
    return Answer(201, body, {"Location": body["url"]})


def not_found() -> Refusal:
    """The object does not exist, or the caller may not see it."""
    return Refusal(404, "Not Found")


def forbidden() -> Refusal:
    """The token lacks the permission."""
    return Refusal(403, "Resource not accessible by integration")


def invalid(resource: str, field_name: str, code: str = "invalid", message: str = "") -> Refusal:
    """One field of the request is not valid."""
    said = {"message": message} if message else {}
    return Refusal(422, "Validation Failed", [{"resource": resource, "code": code, "field": field_name, **said}])
