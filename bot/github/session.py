"""How requests leave for GitHub, and for whatever else is asked over HTTP: by which proxy, and whose word on who is at
the other end is taken.

It refuses to know what is asked.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import hdrs
from yarl import URL


@dataclass(frozen=True, slots=True)
class Proxy:
    """A forward proxy: by CONNECT for https, and by whole addresses for http."""

    url: str
    credentials: str = field(default="", repr=False)
    """As `user:password`; empty where it asks for none."""
    no_proxy: Sequence[str] = ()
    """Hosts that are asked directly, each with all names below it. This host itself always is."""

    def leads_to(self, host: str) -> bool:
        """Whether requests to a host go by it."""
        names = [name.lower().lstrip(".") for name in self.no_proxy]
        host = host.lower().rstrip(".")
        return not is_loopback(host) and not any(host == name or host.endswith(f".{name}") for name in names)


@dataclass(frozen=True, slots=True)
class WayOut:
    """How our requests leave."""

    ca_file: Path | None = None
    """Authorities that are trusted beside the system's."""
    proxy: Proxy | None = None


def is_loopback(host: str) -> bool:
    """Whether a host is this one, and nobody in between hears what is sent. Pure."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def check_authorities(path: Path) -> Path:
    """A file of certificates as it came. Raises `ValueError` for one that cannot be used."""
    try:
        _make_trust(path)
    except FileNotFoundError:
        raise ValueError(f"is not there: {path}") from None
    except OSError:  # ssl.SSLError is one, too.
        raise ValueError("holds no certificates in PEM") from None
    return path


def open_session(way: WayOut, *, limit: int = 100, **options: Any) -> aiohttp.ClientSession:
    """Connections that leave so, at most `limit` of them (0: any number).

    They keep no cookies: GitHub's sign-in sets some, and what it does for one person is no other's. Nor does the
    environment count (`trust_env`): ~/.netrc would come with its proxies.
    """
    connector = aiohttp.TCPConnector(ssl=_make_trust(way.ca_file) if way.ca_file else True, limit=limit)
    middlewares = (_lead_by(way.proxy),) if way.proxy else ()
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), middlewares=middlewares, **options
    )


def describe_failure(error: Exception) -> str:
    """What kept an answer from us, without a word of the request: some errors hold it, and with it credentials."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answers {error.status}"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return "the proxy cannot be reached"
    name = type(error).__name__
    if not isinstance(error, OSError) or not error.errno:
        return name
    # Below zero it is a name that was not found, which only the error itself has words for.
    return f"{name}: {os.strerror(error.errno) if error.errno > 0 else error.strerror}"


def _make_trust(ca_file: Path) -> ssl.SSLContext:
    trust = ssl.create_default_context()
    trust.load_verify_locations(ca_file)
    return trust


def _lead_by(proxy: Proxy) -> aiohttp.ClientMiddlewareType:
    url = URL(proxy.url)
    user, _, password = proxy.credentials.partition(":")
    word = {hdrs.PROXY_AUTHORIZATION: aiohttp.encode_basic_auth(user, password)} if proxy.credentials else {}

    async def lead(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if proxy.leads_to(request.url.host or ""):
            # To whoever connects us, and to nobody behind it: https goes through encrypted, http is read there.
            request.update_proxy(url, None, dict(word))
            if not request.is_ssl():
                request.headers.update(word)
        return await handler(request)

    return lead
