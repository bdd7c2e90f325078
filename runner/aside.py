"""Lets long texts of strangers be read without holding up everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

LONG = 10_000
"""Characters or bytes from which on a text takes more than some milliseconds to read."""

_THREADS = ThreadPoolExecutor(4, thread_name_prefix="aside")
"""Threads for other people's texts only, because DNS lookups and writes to disk wait for asyncio's default ones."""

Args = ParamSpec("Args")
Result = TypeVar("Result")


async def run_aside(size: int, function: Callable[Args, Result], *args: Args.args, **named: Args.kwargs) -> Result:
    """Call a pure function on texts of this total size: in a thread if they are long, so that other work goes on."""
    if size < LONG:
        return function(*args, **named)
    return await run_in_thread(function, *args, **named)


async def run_in_thread(function: Callable[Args, Result], *args: Args.args, **named: Args.kwargs) -> Result:
    """Like `run_aside`, for texts of unknown total length."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: function(*args, **named))
