"""How a command that takes a while is waited for, and how its answer or its failure reaches the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from bot.beside import Refused
from bot.bundle import NotBundled
from bot.command_options import give_up, write
from bot.deliveries import NotReplayed
from bot.job_commands import NotDone
from bot.machine_commands import UnknownMachine
from bot.machine_edits import NotChanged
from bot.pause_commands import UnknownRepository
from bot.reports import UnknownJob
from handlers.ports import GitHubError, GitHubUnavailable
from handlers.takeover import HoldRefused
from runner.db_errors import DatabaseError

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
