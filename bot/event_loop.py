"""The event loop of the service. It is uvloop's if that is installed, because it takes less CPU time per request."""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:  # uvloop is not available for every platform.
    uvloop = None  # type: ignore[assignment]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create the service's event loop."""
    return uvloop.new_event_loop() if uvloop else asyncio.new_event_loop()
