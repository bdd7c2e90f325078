"""Lets long texts of strangers be read without holding up everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

LONG = 10_000
"""Characters or bytes from which on a text takes more than some milliseconds to read."""

Args = ParamSpec("Args")
Result = TypeVar("Result")


async def run_aside(size: int, function: Callable[Args, Result], *args: Args.args, **named: Args.kwargs) -> Result:
    """What a pure function says of texts of this size together. Others take their turns while it reads long ones."""
    if size < LONG:
        return function(*args, **named)
    return await asyncio.to_thread(function, *args, **named)
