"""The service without the pauses that GitHub asks for between writes: they would be all that a measurement shows."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bot.app import serve
from bot.config.settings import load_settings
from bot.event_loop import new_event_loop
from bot.github import Timings
from bot.observability.log import configure_logging
from bot.pace import Pace

HASTE = Pace(github=Timings(write_interval_s=0.0, writes_per_minute=10_000, writes_per_hour=100_000))

if __name__ == "__main__":
    settings = load_settings(Path(sys.argv[2]))
    configure_logging(settings.secret_values())
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(settings, lambda: settings, HASTE))
