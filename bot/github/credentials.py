"""The App's identity: its id, its private key, and the short-lived tokens that it signs with the key.

This module does not know where the key is stored, or where the tokens are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

# GitHub recommends an `iat` 60 s in the past, against clock drift. `exp` may be at most 10 minutes in the future.
# https://docs.github.com/en/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
BACKDATED = timedelta(seconds=60)
LIFETIME = timedelta(minutes=8)


@dataclass(frozen=True, slots=True)
class Bearer:
    """The token of an `Authorization: bearer` header. Its repr hides it."""

    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AppCredentials:
    """The App's id and private key. The repr hides the key."""

    app_id: str
    key: RSAPrivateKey = field(repr=False)

    @classmethod
    def from_pem(cls, app_id: str, private_key: str) -> AppCredentials:
        """Read a PEM text (PKCS#1 or PKCS#8, RSA, no passphrase). Raises `ValueError`, which does not quote the key."""
        try:
            # The configuration has already validated the key. To check its primes again takes 80 ms.
            key = load_pem_private_key(private_key.encode(), password=None, unsafe_skip_rsa_key_validation=True)
        except (ValueError, TypeError):
            raise ValueError("the App's private key is not an unencrypted PEM key") from None
        if not isinstance(key, RSAPrivateKey):
            raise ValueError("the App's private key is not an RSA key")
        return cls(app_id, key)

    def sign(self, now: datetime) -> Bearer:
        """A token (JWT) that authenticates the App until `LIFETIME` after `now`."""
        # PyJWT requires a string for `iss`. GitHub accepts both a string and a number.
        claims = {"iss": str(self.app_id), "iat": now - BACKDATED, "exp": now + LIFETIME}
        return Bearer(jwt.encode(claims, self.key, algorithm="RS256"))
