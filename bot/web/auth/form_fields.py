"""What a form says, whatever shape its body has. It refuses to know what the fields are for."""

from __future__ import annotations

from aiohttp import web

from runner.characters import make_storable


class Unreadable(Exception):  # noqa: N818 - what is the case
    """The body of a form cannot be read; the message is a sentence for people."""


async def read_fields(request: web.Request) -> list[tuple[str, str]]:
    """The names and texts of a form, which a database takes as they are; files are left out.

    Raises `Unreadable`, and `aiohttp.web.HTTPException` for a form that is too large.
    """
    try:
        form = await request.post()
    except web.HTTPException:
        raise
    except Exception as error:
        # aiohttp has no one exception for this: broken parts, unknown encodings and wrong bytes all raise another one.
        raise Unreadable("This form cannot be read.") from error
    return [(name, make_storable(value)) for name, value in form.items() if isinstance(value, str)]
