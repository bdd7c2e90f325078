"""The event loop of the service: uvloop's where there is one, because it costs less for each request."""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:  # It is made for few platforms.
    uvloop = None  # type: ignore[assignment]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make the loop that the service runs on."""
    return uvloop.new_event_loop() if uvloop else asyncio.new_event_loop()
