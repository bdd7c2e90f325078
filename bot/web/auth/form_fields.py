"""Reads the fields of a form, with limits on size, time and encoding, because the form's sender is not known yet.

The only accepted encoding is the one that browsers use for ptq-bot's forms.
"""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl

from aiohttp import web

from runner.characters import make_storable

KIND = "application/x-www-form-urlencoded"

MAX_FORM = 256 * 1024
"""The most bytes of a form. 20,000 characters of advice (`bot.web.dashboard.actions`) need up to 240,000."""

MAX_FIELDS = 10_000
"""The most fields of a form. `MAX_FORM` bytes could hold more than ten times as many."""

FORM_S = 30.0
"""The most seconds for a form to arrive."""


class Unreadable(Exception):  # noqa: N818 - what is the case
    """The body of a form cannot be read. The message is a sentence for people."""


async def read_fields(request: web.Request, form_s: float = FORM_S) -> list[tuple[str, str]]:
    """The names and texts of a form. A database can store the texts unchanged.

    The application's `client_max_size` must be `MAX_FORM`. Raises `Unreadable`, and `aiohttp.web.HTTPException` for a
    form of another type or charset, or one that is too large or too slow.
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
