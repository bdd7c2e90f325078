"""One authenticated and parsed API request, with the checks that many handlers need."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from yarl import URL

from github_standin.model.actions import Actions
from github_standin.model.answers import Answer, Refusal, invalid, not_found
from github_standin.model.auth import Authority, Token, UserToken
from github_standin.model.limits import Limits, RateLimits
from github_standin.model.registration import Registration
from github_standin.model.render import Links
from github_standin.model.state import Comment, Installation, Issue, Pull, Repository, User, World
from github_standin.model.webhooks import Webhooks

Item = TypeVar("Item")
MAX_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class Site:
    """The parts of the stand-in that handlers work with."""

    world: World
    links: Links
    actions: Actions
    webhooks: Webhooks
    authority: Authority
    limits: Limits
    rates: RateLimits
    registration: Registration


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `token` is None if the App itself calls; `params` come from the path."""

    site: Site
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    fields: Mapping[str, Any]
    token: Token | None
    found: Repository | None

    @property
    def repository(self) -> Repository:
        """The repository that the path names."""
        if self.found is None:
            raise not_found()
        return self.found

    @property
    def actor(self) -> User:
        """The person whose token it is, or else the App's bot."""
        return self.token.user if isinstance(self.token, UserToken) else self.site.links.app.bot

    @property
    def caller(self) -> str:
        """The rate limit that this request counts against."""
        return caller_of(self.token)

    def number(self, name: str) -> int:
        """A number in the path."""
        return int(self.params[name])

    def issue(self) -> Issue:
        """The issue or pull request that the path names."""
        issue = self.repository.issues.get(self.number("issue_number"))
        if issue is None:
            raise not_found()
        return issue

    def pull(self) -> Pull:
        """The pull request that the path names."""
        pull = self.repository.issues.get(self.number("pull_number"))
        if not isinstance(pull, Pull):
            raise not_found()
        return pull

    def comment(self) -> Comment:
        """The comment that the path names."""
        for comment in self.repository.all_comments():
            if comment.id == self.number("comment_id"):
                return comment
        raise not_found()

    def optional_text(self, name: str) -> str | None:
        """A text in the body; None if it is absent or null."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, str):
            raise Refusal(422, f"Invalid request.\n\nFor 'properties/{name}', {value!r:.100} is not a string.")
        return value

    def text(self, name: str) -> str:
        """A required text in the body."""
        value = self.optional_text(name)
        if value is None:
            raise Refusal(422, f'Invalid request.\n\n"{name}" wasn\'t supplied.')
        return value

    def flag(self, name: str) -> bool:
        """A boolean in the body; absent means False."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise Refusal(422, f"Invalid request.\n\nFor 'properties/{name}', {value!r:.100} is not a boolean.")
        return bool(value)

    def items(self, name: str, kind: type[Item]) -> list[Item]:
        """A list in the body, each item of one kind; absent means empty."""
        value = self.fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise Refusal(422, f"Invalid request.\n\nFor 'properties/{name}', {value!r:.100} is not what it must be.")
        return value

    def content(self, name: str, resource: str, required: bool = False) -> str | None:
        """A text for people: not blank if it is required, and not longer than GitHub's limit."""
        value = self.text(name) if required else self.optional_text(name)
        if required and not (value or "").strip():
            raise invalid(resource, name, "missing_field", f"{name.capitalize()} can't be blank")
        is_title = name == "title"
        most = self.site.limits.title_characters if is_title else self.site.limits.body_characters
        if value is not None and len(value) > most:
            message = f"{name} is too long (maximum is {most} characters)"
            raise invalid(resource, name, "custom" if is_title else "unprocessable", message)
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """A query parameter with fixed values. For any other value GitHub uses the first, the default."""
        value = self.query.get(name, choices[0])
        return value if value in choices else choices[0]

    def since(self) -> datetime | None:
        """The query's `since`, in UTC."""
        text = self.query.get("since")
        if not text:
            return None
        try:
            at = datetime.fromisoformat(text)
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        except (ValueError, OverflowError) as error:
            raise invalid("Issue", "since") from error

    def page_of(self, items: Sequence[Item], render: Callable[[Item], object]) -> Answer:
        """The page of `items` that the query asks for, with a `Link` header to the others."""
        per_page, page = self.per_page(), _positive(self.query.get("page"), 1)
        last = max(1, -(-len(items) // per_page))
        shown = items[(page - 1) * per_page : page * per_page]
        places = {"first": 1, "prev": page - 1} if page > 1 else {}
        places |= {"next": page + 1, "last": last} if page < last else {}
        links = [f'<{self._address(page=str(number))}>; rel="{name}"' for name, number in places.items()]
        return Answer(200, [render(item) for item in shown], {"Link": ", ".join(links)} if links else {})

    def per_page(self) -> int:
        """The number of items on a page: 30 by default, 100 at most."""
        return min(MAX_PER_PAGE, _positive(self.query.get("per_page"), 30))

    def link_to(self, relation: str, **query: str) -> dict[str, str]:
        """A `Link` header to the same list with another query."""
        return {"Link": f'<{self._address(**query)}>; rel="{relation}"'}

    def _address(self, **query: str) -> str:
        return str(URL(f"{self.site.links.api}{self.path}").with_query({**self.query, **query}))


def caller_of(token: Token | None) -> str:
    """The name of a caller in the rate limit."""
    if isinstance(token, UserToken):
        return f"user ID {token.user.id}"
    return name_installation(token.installation) if token else "the App"


def name_installation(installation: Installation) -> str:
    """The name of an installation in the rate limit."""
    return f"installation ID {installation.id}"


def etag_of(body: bytes) -> str:
    """The ETag of an answer."""
    return f'W/"{hashlib.sha256(body).hexdigest()}"'


def _positive(text: str | None, default: int) -> int:
    number = int(text[:9]) if text and text.isascii() and text.isdecimal() else 0
    return number or default
