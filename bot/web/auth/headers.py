"""The headers of every page, and the answer to more requests than the service can take."""

from __future__ import annotations

from aiohttp import web

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: with it, browsers send forms without an origin.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def refuse_busy(words: str, wait_s: int = 10) -> web.HTTPException:
    """The answer that asks a client to try again after `wait_s` seconds."""
    headers = {**HEADERS, "Retry-After": str(wait_s)}
    return web.HTTPServiceUnavailable(text=f"{words}: try again soon\n", headers=headers)
