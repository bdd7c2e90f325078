"""How connections to GitHub, and to whatever else is asked over HTTPS, tell who is at the other end."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import aiohttp


def check_authorities(path: Path) -> Path:
    """A file of certificates as it came. Raises `ValueError` for one that cannot be used."""
    try:
        _make_trust(path)
    except FileNotFoundError:
        raise ValueError(f"is not there: {path}") from None
    except OSError:  # ssl.SSLError is one, too.
        raise ValueError("holds no certificates in PEM") from None
    return path


def make_connector(ca_file: Path | None, **options: Any) -> aiohttp.TCPConnector:
    """Connections that trust the system's authorities, and those of a file beside them."""
    return aiohttp.TCPConnector(ssl=_make_trust(ca_file) if ca_file else True, **options)


def _make_trust(ca_file: Path) -> ssl.SSLContext:
    trust = ssl.create_default_context()
    trust.load_verify_locations(ca_file)
    return trust
