"""What a sweep over a backlog has come to: a row for each issue, as a table for a terminal or as JSON. Pure.

Titles, and why something failed, are other people's words: in a table they are fit for a terminal, in JSON as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bot.operations.reports import render_table
from handlers.text.sanitize import one_line
from handlers.words.verified import Outcome
from runner.characters import show_for_terminal

NO_SCRIPT = "no script"
LEFT_OUT = "left out"
UNDER_WAY = "under way"
NOT_BEGUN = "not begun"
WANTED = "to be looked at"
"""What has come of an issue, beside what a job can come to."""

ORDER = (*map(str, Outcome), NO_SCRIPT, LEFT_OUT, UNDER_WAY, WANTED, NOT_BEGUN)
"""In which they are counted."""

MAX_TITLE = 50
MAX_WHY = 120
"""Characters that a table shows."""


@dataclass(frozen=True, slots=True)
class Row:
    """One issue."""

    issue: int
    title: str
    outcome: str
    why: str = ""
    """A clause; empty where the outcome says it all."""
    commit: str | None = None
    job: str | None = None
    page: str | None = None
    """Where the job shows what ran."""
    scripts: int | None = None
    """How many would be run; known beforehand alone."""

    def describe(self) -> str:
        """It on a line, for a terminal."""
        at = f" at {self.commit[:10]}" if self.commit else ""
        return f"#{self.issue}  {self.outcome}{at}{_explain(self)}  {self.page or one_line(self.title, MAX_TITLE)}\n"


@dataclass(frozen=True, slots=True)
class Summary:
    """All of them, in the order in which they are looked at."""

    name: str
    repository: str
    label: str
    rows: Sequence[Row]
    stopped: str | None = None
    """Why nothing more of it begins, as a clause or more."""

    def count(self) -> dict[str, int]:
        """How many issues came to what."""
        counted = Counter(row.outcome for row in self.rows)
        return {outcome: counted[outcome] for outcome in ORDER if counted[outcome]}

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be waited for, or begun."""
        return not self.stopped and not {UNDER_WAY, NOT_BEGUN} & self.count().keys()


def render_text(summary: Summary) -> str:
    """The counts, and a table, for a terminal."""
    about = f"{summary.repository}, label {summary.label}"
    if not summary.rows:
        return show_for_terminal(f"No open issue of {about}.\n")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in summary.count().items())
    table = render_table([("issue", "outcome", "commit", "see", "title"), *map(_cells, summary.rows)])
    # The names of labels may be anything; those of outcomes are ours.
    head = show_for_terminal(f"Sweep {summary.name} of {about}: ") + f"{counts}.\n\n"
    stopped = show_for_terminal(f"\nNothing more begins: {summary.stopped}\n") if summary.stopped else ""
    return f"{head}{table}{stopped}"


def render_json(summary: Summary) -> str:
    """The same for programs, on one page."""
    rows = [asdict(row) for row in summary.rows]
    values = {"sweep": summary.name, "repository": summary.repository, "label": summary.label}
    return (
        json.dumps({**values, "stopped": summary.stopped, "counts": summary.count(), "issues": rows}, indent=2) + "\n"
    )


def _cells(row: Row) -> tuple[str, ...]:
    scripts = f" ({row.scripts} script{'s' * (row.scripts != 1)})" if row.scripts is not None else ""
    title = one_line(show_for_terminal(row.title), MAX_TITLE)
    return f"#{row.issue}", f"{row.outcome}{scripts}{_explain(row)}", (row.commit or "")[:10], row.page or "", title


def _explain(row: Row) -> str:
    return f": {one_line(show_for_terminal(row.why), MAX_WHY)}" if row.why else ""
