"""Authentication: the App with its JWT, or a token that was created here."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from aiohttp import encode_basic_auth

from github_standin.model.answers import Refusal
from github_standin.model.state import App, Installation, Repository, User, World

LEVELS = ("none", "read", "write", "admin")
JWT_LIFE_S = 600
TOKEN_LIFE = timedelta(hours=1)
USER_TOKEN_LIFE = timedelta(hours=8)


@dataclass(frozen=True, slots=True)
class Token:
    """An installation token, with its repositories and permissions."""

    value: str
    installation: Installation
    repository_ids: frozenset[int] | None
    """None means every repository of the installation."""
    permissions: Mapping[str, str]
    expires_at: datetime

    def reaches(self, repository: Repository) -> bool:
        """Whether the token covers the repository."""
        return (
            repository.installed
            and repository.owner == self.installation.account
            and (self.repository_ids is None or repository.id in self.repository_ids)
        )

    def may(self, need: str) -> bool:
        """Whether the token has the permission `need`, such as `issues:write`."""
        name, _, level = need.partition(":")
        return LEVELS.index(self.permissions.get(name, "none")) >= LEVELS.index(level)


@dataclass(frozen=True, slots=True)
class UserToken(Token):
    """A token with which the App acts for a person. Both need the permission."""

    user: User

    def reaches(self, repository: Repository) -> bool:
        """Whether the App is installed there, and the person can at least read."""
        return repository.installed and repository.role_of(self.user) != "none"


class Authority:
    """Checks credentials and creates tokens."""

    def __init__(self, world: World, app: App) -> None:
        self._world = world
        self._app = app
        self._tokens: dict[str, Token] = {}

    def identify(self, authorization: str) -> Token | None:
        """The token in the header; None for the App itself. Raises `Refusal`."""
        scheme, _, credential = authorization.partition(" ")
        if scheme.lower() not in ("bearer", "token", "basic") or not credential:
            raise Refusal(401, "Requires authentication")
        if scheme.lower() == "basic":
            self._check_client(authorization)
            return None
        if credential in self._tokens:
            return self._live(self._tokens[credential])
        if credential.count(".") != 2 or credential.startswith("ghs_"):
            raise Refusal(401, "Bad credentials")
        self._check_jwt(credential)
        return None

    def revoke_all(self) -> None:
        """Make every token invalid."""
        self._tokens.clear()

    def mint(
        self, installation: Installation, repository_ids: frozenset[int] | None, permissions: Mapping[str, str]
    ) -> Token:
        """Create a token. The caller has checked it against the installation's permissions."""
        expires_at = self._world.now() + TOKEN_LIFE
        token = Token(_make_secret(), installation, repository_ids, dict(permissions), expires_at)
        self._tokens[token.value] = token
        return token

    def mint_for(self, user: User) -> UserToken:
        """Create a person's token."""
        expires_at = self._world.now() + USER_TOKEN_LIFE
        account = Installation(user.id, user, self._world.now())
        value = f"ghu_{secrets.token_hex(18)}"
        token = UserToken(value, account, None, dict(self._app.permissions), expires_at, user)
        self._tokens[token.value] = token
        return token

    def revoke(self, value: str) -> bool:
        """Revoke a person's token; False if there is none."""
        found = isinstance(self._tokens.get(value), UserToken)
        if found:
            del self._tokens[value]
        return found

    def _check_client(self, authorization: str) -> None:
        """Check the App's client id and secret."""
        wanted = encode_basic_auth(self._app.client_id, self._app.client_secret)
        if not secrets.compare_digest(authorization.encode(), wanted.encode()):
            raise Refusal(401, "Bad credentials")

    def _live(self, token: Token) -> Token:
        if token.expires_at <= self._world.clock():
            raise Refusal(401, "Bad credentials")
        return token

    def _check_jwt(self, credential: str) -> None:
        """GitHub: RS256, `iss` the App's id, `iat` not in the future, `exp` at most ten minutes ahead."""
        try:
            claims = jwt.decode(credential, self._app.public_key, algorithms=["RS256"], options=_ONLY_SIGNATURE)
        except jwt.PyJWTError as error:
            raise Refusal(401, "A JSON web token could not be decoded") from error
        now = self._world.clock().astimezone(UTC).timestamp()
        issued_at, expires_at = _number(claims.get("iat")), _number(claims.get("exp"))
        if issued_at is None or issued_at > now:
            raise Refusal(401, "'Issued at' claim ('iat') must be an Integer representing the time of the assertion")
        if expires_at is None or expires_at <= now:
            raise Refusal(401, "'Expiration time' claim ('exp') must be a numeric value representing the future time")
        if expires_at > now + JWT_LIFE_S:
            raise Refusal(401, "'Expiration time' claim ('exp') is too far in the future")
        if str(claims.get("iss")) != self._app.id:
            raise Refusal(404, "Integration not found")


_ONLY_SIGNATURE: Any = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
    "verify_iss": False,
    "verify_aud": False,
}
"""The claims are checked against our own clock, and `iss` may be a number."""


def _number(claim: object) -> float | None:
    return float(claim) if isinstance(claim, int | float) and not isinstance(claim, bool) else None


def _make_secret() -> str:
    """A token in GitHub's format since 2026: long, with dots."""
    return "ghs_" + ".".join(secrets.token_hex(length // 2) for length in (40, 260, 86))
