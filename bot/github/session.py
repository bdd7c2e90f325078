"""HTTP sessions for GitHub and other services: which proxy they use, and which certificate authorities they trust.

This module does not know which requests are sent.
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
    """A forward proxy. It gets CONNECT requests for https, and absolute URLs for http."""

    url: str
    credentials: str = field(default="", repr=False)
    """`user:password`. Empty if the proxy needs none."""
    no_proxy: Sequence[str] = ()
    """Hosts that are reached without the proxy, each with its subdomains. The loopback host never uses the proxy."""

    def leads_to(self, host: str) -> bool:
        """Whether requests to a host go through the proxy."""
        names = [name.lower().lstrip(".") for name in self.no_proxy]
        host = host.lower().rstrip(".")
        return not is_loopback(host) and not any(host == name or host.endswith(f".{name}") for name in names)


@dataclass(frozen=True, slots=True)
class OutboundSettings:
    """The settings of outgoing connections."""

    ca_file: Path | None = None
    """A file with certificate authorities that are trusted in addition to the system's."""
    proxy: Proxy | None = None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, so that nobody on the network can read the traffic. Pure."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def check_authorities(path: Path) -> Path:
    """Return `path` if the file has usable certificates. Raises `ValueError` otherwise."""
    try:
        _make_trust(path)
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except OSError:  # This includes `ssl.SSLError`.
        raise ValueError("holds no certificates in PEM") from None
    return path


def open_session(way: OutboundSettings, *, limit: int = 100, **options: Any) -> aiohttp.ClientSession:
    """Open a session with these settings and at most `limit` connections (0: no limit).

    The session keeps no cookies, because GitHub's sign-in sets cookies, and one person's cookies must not be sent for
    another person. It does not read proxies from the environment (`trust_env`), because aiohttp would then also read
    ~/.netrc.
    """
    connector = aiohttp.TCPConnector(ssl=_make_trust(way.ca_file) if way.ca_file else True, limit=limit)
    middlewares = (_lead_by(way.proxy),) if way.proxy else ()
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), middlewares=middlewares, **options
    )


def describe_failure(error: Exception) -> str:
    """Why a request got no answer. The reason quotes no part of the request, because that may contain credentials."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answers {error.status}"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return "the proxy cannot be reached"
    name = type(error).__name__
    if not isinstance(error, OSError) or not error.errno:
        return name
    # A negative number means a failed DNS lookup, for which only the error itself has a text.
    return f"{name}: {os.strerror(error.errno) if error.errno > 0 else error.strerror}"


def _make_trust(ca_file: Path) -> ssl.SSLContext:
    trust = ssl.create_default_context()
    trust.load_verify_locations(ca_file)
    return trust


def _lead_by(proxy: Proxy) -> aiohttp.ClientMiddlewareType:
    url = URL(proxy.url)
    user, _, password = proxy.credentials.partition(":")
    authorization = {hdrs.PROXY_AUTHORIZATION: aiohttp.encode_basic_auth(user, password)} if proxy.credentials else {}

    async def lead(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if proxy.leads_to(request.url.host or ""):
            # Only the proxy gets the credentials: in the CONNECT request for https, in the request itself for http.
            request.update_proxy(url, None, dict(authorization))
            if not request.is_ssl():
                request.headers.update(authorization)
        return await handler(request)

    return lead
