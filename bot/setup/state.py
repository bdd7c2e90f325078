"""The state of one set-up between two requests: the saved answers, and what was found since the start."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bot.doctor.findings import Finding
from bot.setup.answers import Answers
from bot.setup.files import SetupFiles
from bot.setup.github_app import GitHubSetupError, Installed, find_form_address, list_installed, make_manifest
from bot.setup.steps import Form
from bot.setup.trial import Trial
from bot.web.auth.sessions import is_same


def now() -> datetime:
    """The clock of this host."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why a form was not accepted, for the next view of its page."""

    words: str = ""
    about: str = ""
    """The field that it is about: its name, after the prefix of its form."""
    may_insist: bool = False
    """Whether the form offers to ignore it."""
    typed: Form = field(default_factory=dict)
    """What the form shows again."""


@dataclass(frozen=True, slots=True)
class Underway:
    """Work that goes on after the form that started it was answered."""

    words: str
    """What is being done, as a sentence without its full stop."""
    path: str
    form: Form
    """What was sent, and where to."""


class SetupState:
    """One set-up."""

    def __init__(self, config: Path) -> None:
        """Continue with the saved answers. Raises `UnusableFile` if they cannot be read."""
        self.files = SetupFiles(config)
        self.answers = self.files.load()
        self.our_url = ""
        self._oauth_state = ""
        self.complaints: dict[str, Complaint] = {}
        """Page -> what its next view shows."""
        self.underway: dict[str, Underway] = {}
        """Page -> the work that one of its forms has started. Until it ends, the page reloads itself."""
        # Not saved, because it can be looked up again:
        self.installed: Sequence[Installed] = ()
        self.trial: Trial | None = None
        self.findings: Sequence[Finding] = ()
        self.is_written = False
        self.has_ended = False

    def save(self, answers: Answers) -> None:
        """Use and save these answers. Raises `OSError` if they cannot be written: then only this process has them."""
        self.answers = answers
        self.files.save(answers)

    def describe_app_form(self) -> dict[str, str]:
        """What the browser posts to GitHub, and where. GitHub's answer returns the OAuth state."""
        self._oauth_state = self._oauth_state or secrets.token_urlsafe(24)
        place = self.answers.place
        return {"address": find_form_address(place, self._oauth_state), "manifest": make_manifest(place, self.our_url)}

    def accept_oauth_state(self, state: str) -> bool:
        """Whether an answer of GitHub is for this set-up. Each state is valid once."""
        is_ours = bool(self._oauth_state) and is_same(state, self._oauth_state)
        self._oauth_state = "" if is_ours else self._oauth_state
        return is_ours

    async def find_installed(self) -> None:
        """Ask GitHub where the App is installed."""
        if self.answers.app is None:
            return
        try:
            self.installed = await list_installed(self.answers.place, self.answers.app, now)
        except GitHubSetupError as error:
            self.complaints.setdefault("repositories", Complaint(str(error)))
