"""Encrypts values that a browser keeps, so that the browser can neither read nor change them.

The key is derived from the installation's secret. So every replica can decrypt the values, and they need no row in the
database.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from cryptography.fernet import Fernet, InvalidToken


class CookieCipher:
    """Encrypts values, and decrypts them until they expire."""

    def __init__(self, secret: bytes, now: Callable[[], datetime]) -> None:
        key = hmac.digest(secret, b"what browsers keep", "sha256")
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._now = now

    def encrypt(self, purpose: str, values: Mapping[str, str]) -> str:
        """Encrypt values into the text of a cookie, for one purpose only."""
        text = json.dumps({"purpose": purpose, "values": dict(values)})
        return self._fernet.encrypt_at_time(text.encode(), self._seconds()).decode()

    def decrypt(self, purpose: str, encrypted: str, lasts: timedelta) -> dict[str, str] | None:
        """The values. None if they are not from this installation, are too old, or are for another purpose."""
        try:
            given = encrypted.encode(errors="replace")
            text = self._fernet.decrypt_at_time(given, int(lasts.total_seconds()), self._seconds())
        except InvalidToken:
            return None
        found = json.loads(text)
        return found["values"] if found["purpose"] == purpose else None

    def _seconds(self) -> int:
        return int(self._now().timestamp())
