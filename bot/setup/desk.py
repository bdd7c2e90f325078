"""What one set-up works with between two requests: the answers, which are on the disk, and what was seen lately."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bot.doctor.findings import Finding
from bot.setup.answers import Answers
from bot.setup.github_app import Installed, NotMade, find_form_address, list_installed, make_manifest
from bot.setup.notes import SetupFiles
from bot.setup.steps import Form
from bot.setup.trial import Trial


def now() -> datetime:
    """The clock of this host."""
    return datetime.now(UTC)


class Desk:
    """One set-up."""

    def __init__(self, config: Path) -> None:
        """Go on with the answers that are there. Raises `Unusable` where they cannot be read."""
        self.notes = SetupFiles(config)
        self.answers = self.notes.load()
        self.our_url = ""
        self._state = ""
        # For the page that is shown next:
        self.complaint = ""
        self.typed: Form = {}
        # Seen, and not kept on the disk: it is looked up again.
        self.installed: Sequence[Installed] = ()
        self.trial: Trial | None = None
        self.findings: Sequence[Finding] = ()
        self.is_looking = False
        """Whether the doctor is at work."""
        self.is_written = False
        self.has_ended = False

    def keep(self, answers: Answers) -> None:
        """Go on with these answers. Raises `OSError` where they cannot be written: then they last as long as we do."""
        self.answers = answers
        self.notes.save(answers)

    def describe_creation(self) -> dict[str, str]:
        """What the browser posts to GitHub, and where. The state in it comes back with GitHub's answer."""
        self._state = self._state or secrets.token_urlsafe(24)
        place = self.answers.place
        return {"address": find_form_address(place, self._state), "manifest": make_manifest(place, self.our_url)}

    def take_state(self, state: str) -> bool:
        """Whether an answer of GitHub's is one to us; each state is good once."""
        is_ours = bool(self._state) and hmac.compare_digest(state.encode(), self._state.encode())
        self._state = "" if is_ours else self._state
        return is_ours

    async def find_installed(self) -> None:
        """Ask GitHub where the App is installed."""
        if self.answers.app is None:
            return
        try:
            self.installed = await list_installed(self.answers.place, self.answers.app, now)
        except NotMade as error:
            self.complaint = self.complaint or str(error)
