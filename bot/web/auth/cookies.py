"""Values that a browser keeps for us, and can neither read nor change.

Encrypted and signed under a key that follows from the installation's secret, so that every replica opens what another
one has closed, and no row is needed. It refuses to know what a cookie is.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from cryptography.fernet import Fernet, InvalidToken


class Seal:
    """Closes values, and opens them again for as long as they last."""

    def __init__(self, secret: bytes, now: Callable[[], datetime]) -> None:
        key = hmac.digest(secret, b"what browsers keep", "sha256")
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._now = now

    def close(self, purpose: str, values: Mapping[str, str]) -> str:
        """The values as text for a cookie; what was closed for one purpose opens for no other."""
        text = json.dumps({"purpose": purpose, "values": dict(values)})
        return self._fernet.encrypt_at_time(text.encode(), self._seconds()).decode()

    def open(self, purpose: str, sealed: str, lasts: timedelta) -> dict[str, str] | None:
        """The values; None for what is not ours, is too old, or was meant for something else."""
        try:
            given = sealed.encode(errors="replace")
            text = self._fernet.decrypt_at_time(given, int(lasts.total_seconds()), self._seconds())
        except InvalidToken:
            return None
        found = json.loads(text)
        return found["values"] if found["purpose"] == purpose else None

    def _seconds(self) -> int:
        return int(self._now().timestamp())
