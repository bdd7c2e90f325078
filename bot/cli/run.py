"""How a command that takes a while is waited for, and how its answer or its failure reaches the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from bot.cli.options import give_up, write
from bot.operations.bundle import NotBundled
from bot.operations.context import Refused
from bot.operations.deliveries import NotReplayed
from bot.operations.jobs import NotDone
from bot.operations.machine_edits import NotChanged
from bot.operations.machines import UnknownMachine
from bot.operations.pause import UnknownRepository
from bot.operations.reports import UnknownJob
from handlers.holds.takeover import HoldRefused
from handlers.ports import GitHubError, GitHubUnavailable
from runner.db.errors import DatabaseError

Value = TypeVar("Value")

FAILURES = (
    *(DatabaseError, UnknownJob, NotReplayed, NotBundled, HoldRefused, NotChanged, NotDone, Refused),
    *(GitHubError, GitHubUnavailable),
)

INTERRUPTED = 130
"""A shell's exit status for what Ctrl-C has ended."""


def print_answer(answering: Coroutine[None, None, str]) -> None:
    """Print what a command comes to."""
    write(wait_for(answering))


def wait_for(answering: Coroutine[None, None, Value], interrupted: str = "Stopped.") -> Value:
    """What a command comes to. What goes wrong ends the program with a sentence; so does Ctrl-C, with this one."""
    try:
        return asyncio.run(answering)
    except (UnknownMachine, UnknownRepository) as error:
        give_up(f"ptq-bot: {error}", status=2)
    except FAILURES as error:
        give_up(f"ptq-bot: {error}")
    except KeyboardInterrupt:
        give_up(f"\n{interrupted}", status=INTERRUPTED)
