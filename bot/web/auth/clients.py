"""Finds the address that a request comes from. Readers who are not signed in are distinguished by it. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from aiohttp import web


def find_client(request: web.Request) -> str:
    """The address of a request's sender. For IPv6, the sender's network (/64). Empty if the address is not known.

    If the request comes from an address that is not public, a proxy has passed it on. Then the sender's address is the
    last one in `X-Forwarded-For`, because the proxy has written that. If the proxy does not write the header, senders
    can choose their address, and all senders without the header have the proxy's address.
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
