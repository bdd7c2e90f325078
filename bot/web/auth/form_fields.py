"""Reads the fields of a form. It refuses to know what the fields are for.

A form has the one shape that browsers send for our pages. Its size, its time and its encoding are bounded here,
because nothing about its sender is known before it is read.
"""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl

from aiohttp import web

from runner.characters import make_storable

KIND = "application/x-www-form-urlencoded"

MAX_FORM = 256 * 1024
"""Bytes of a form: 20,000 characters of advice (`bot.web.dashboard.actions`) have at most 240,000 percent-encoded."""

MAX_FIELDS = 10_000
"""Fields of a form. In a form of `MAX_FORM` bytes they could be ten times as many."""

FORM_S = 30.0
"""Seconds that a form may take to arrive."""


class Unreadable(Exception):  # noqa: N818 - what is the case
    """The body of a form cannot be read; the message is a sentence for people."""


async def read_fields(request: web.Request, form_s: float = FORM_S) -> list[tuple[str, str]]:
    """The names and texts of a form, which a database takes as they are.

    The application's `client_max_size` bounds the form: give it `MAX_FORM`. Raises `Unreadable`, and
    `aiohttp.web.HTTPException` for a form of another type or charset, and for one that is too large or too slow.
    """
    if request.content_type != KIND or (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise web.HTTPUnsupportedMediaType(text=f"a form must be {KIND} in UTF-8\n")
    try:
        async with asyncio.timeout(form_s):
            body = await request.read()
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the form did not arrive within {form_s:g} seconds\n") from None
    except (ValueError, ConnectionError, web.RequestPayloadError) as error:
        raise Unreadable("This form cannot be read.") from error
    return [(name, make_storable(value)) for name, value in fields]
