"""From which address a request comes, where readers without a name are told apart by it. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from aiohttp import web


def find_client(request: web.Request) -> str:
    """The sender's address, without the part that one IPv6 network chooses itself; empty if nobody knows it.

    Where a proxy in a network that is not public passes the request on, it is the last one in `X-Forwarded-For`: the
    proxy has written that. Behind a proxy that does not write it, the sender may choose it, or all senders are one.
    """
    peer = _parse(request.remote or "")
    forwarded = ",".join(request.headers.getall("X-Forwarded-For", [])).rpartition(",")[2]
    address = (_parse(forwarded.strip()) if peer is None or not peer.is_global else None) or peer
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Network((address, 64), strict=False))
    return str(address or "")


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
