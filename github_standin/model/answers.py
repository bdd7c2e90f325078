"""What a request can come to: an answer, or a refusal in GitHub's words.

It refuses to know which request it was.
"""

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
    """The answer is no: a status of 400 or more, a sentence, and the `errors` of a failed validation."""

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
        """The refusal as it goes out (schemas `basic-error` and `validation-error`)."""
        errors = {"errors": [dict(error) for error in self.errors]} if self.errors else {}
        body = {"message": self.message, **errors, "documentation_url": DOCUMENTATION, "status": str(self.status)}
        return Answer(self.status, body, self.headers)


def created(body: Mapping[str, Any]) -> Answer:
    """Something new, with its address."""
    return Answer(201, body, {"Location": body["url"]})


def not_found() -> Refusal:
    """There is no such thing, or the caller may not know of it."""
    return Refusal(404, "Not Found")


def forbidden() -> Refusal:
    """The token's permissions do not reach that far."""
    return Refusal(403, "Resource not accessible by integration")


def invalid(resource: str, field_name: str, code: str = "invalid", message: str = "") -> Refusal:
    """One field of the request cannot be."""
    said = {"message": message} if message else {}
    return Refusal(422, "Validation Failed", [{"resource": resource, "code": code, "field": field_name, **said}])
