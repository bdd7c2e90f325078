"""How a command that takes a while is waited for, and how its answer or its failure reaches the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from bot.cli.options import give_up, write

Value = TypeVar("Value")

INTERRUPTED = 130
"""A shell's exit status for what Ctrl-C has ended."""


def print_answer(answering: Coroutine[None, None, str]) -> None:
    """Print what a command comes to."""
    write(wait_for(answering))


def wait_for(answering: Coroutine[None, None, Value], interrupted: str = "Stopped.") -> Value:
    """What a command comes to. What goes wrong ends the program with a sentence; so does Ctrl-C, with this one."""
    from bot.cli.failures import FAILURES, WRONG_NAMES

    try:
        return asyncio.run(answering)
    except WRONG_NAMES as error:
        give_up(f"ptq-bot: {error}", status=2)
    except FAILURES as error:
        give_up(f"ptq-bot: {error}")
    except KeyboardInterrupt:
        give_up(f"\n{interrupted}", status=INTERRUPTED)
