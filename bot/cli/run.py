"""Runs the coroutine of a command, and prints its result or its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from bot.cli.options import give_up, write

Value = TypeVar("Value")

INTERRUPTED = 130
"""The shell's exit status for a program that Ctrl-C ended."""


def print_answer(answering: Coroutine[None, None, str]) -> None:
    """Run a command and print its answer."""
    write(wait_for(answering))


def wait_for(answering: Coroutine[None, None, Value], interrupted: str = "Stopped.") -> Value:
    """Run a command and return its result. A failure ends the program with a sentence, Ctrl-C with `interrupted`."""
    from bot.cli.failures import FAILURES, WRONG_NAMES

    try:
        return asyncio.run(answering)
    except WRONG_NAMES as error:
        give_up(f"ptq-bot: {error}", status=2)
    except FAILURES as error:
        give_up(f"ptq-bot: {error}")
    except KeyboardInterrupt:
        give_up(f"\n{interrupted}", status=INTERRUPTED)
