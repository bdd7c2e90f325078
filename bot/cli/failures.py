"""The exceptions that a command shows to its user as a sentence."""

from __future__ import annotations

from bot.cli.apply import NotApplied
from bot.operations.bundle import NotBundled
from bot.operations.context import UnknownJob, UnknownRepository
from bot.operations.deliveries import NotReplayed
from bot.operations.jobs import NotDone
from bot.operations.machine_edits import NotChanged
from bot.operations.machines import UnknownMachine
from bot.operations.reports import NoNotePage
from handlers.holds.manual_jobs import HoldRefused
from handlers.jobs.preconditions import NotStarted
from handlers.jobs.tasks import Refused
from handlers.ports import GitHubError, GitHubUnavailable
from runner.db.errors import DatabaseError

WRONG_NAMES = (UnknownMachine, UnknownRepository)
"""The command names something that is not in the configuration."""

FAILURES = (
    *(
        DatabaseError,
        UnknownJob,
        NoNotePage,
        NotReplayed,
        NotBundled,
        HoldRefused,
        NotApplied,
        NotChanged,
        NotDone,
        NotStarted,
        Refused,
    ),
    *(GitHubError, GitHubUnavailable),
)
