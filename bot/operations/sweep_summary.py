"""The result of a sweep: a row for each issue, as a table for a terminal or as JSON. Pure.

Titles and reasons contain other people's text. It is escaped in the table, and unchanged in JSON.
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
"""Outcomes of an issue in a sweep, in addition to the outcomes of a job."""

ORDER = (*map(str, Outcome), NO_SCRIPT, LEFT_OUT, UNDER_WAY, WANTED, NOT_BEGUN)
"""The order of outcomes in the counts."""

MAX_TITLE = 50
MAX_WHY = 120
"""The most characters in a table."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one issue."""

    issue: int
    title: str
    outcome: str
    why: str = ""
    """The reason as a clause; empty if the outcome is enough."""
    commit: str | None = None
    job: str | None = None
    page: str | None = None
    """The URL of the job's page."""
    scripts: int | None = None
    """The number of scripts that would run. Only known in a dry run."""

    def describe(self) -> str:
        """The row as one line, for a terminal."""
        at = f" at {self.commit[:10]}" if self.commit else ""
        return f"#{self.issue}  {self.outcome}{at}{_explain(self)}  {self.page or one_line(self.title, MAX_TITLE)}\n"


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a sweep. The rows are in the order of the issue numbers."""

    name: str
    repository: str
    label: str
    rows: Sequence[Row]
    stopped: str | None = None
    """Why no more jobs start; None if the sweep was not stopped."""

    def count(self) -> dict[str, int]:
        """Outcome -> number of issues. Outcomes without issues are left out."""
        counted = Counter(row.outcome for row in self.rows)
        return {outcome: counted[outcome] for outcome in ORDER if counted[outcome]}

    @property
    def is_complete(self) -> bool:
        """Whether the sweep was not stopped, no job is active, and none is left to start."""
        return not self.stopped and not {UNDER_WAY, NOT_BEGUN} & self.count().keys()


def render_text(summary: Summary) -> str:
    """The counts and a table, for a terminal."""
    about = f"{summary.repository}, label {summary.label}"
    if not summary.rows:
        return show_for_terminal(f"No open issue of {about}.\n")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in summary.count().items())
    table = render_table([("issue", "outcome", "commit", "see", "title"), *map(_cells, summary.rows)])
    # Label names can contain any text, and are escaped. Outcomes are our own constants.
    head = show_for_terminal(f"Sweep {summary.name} of {about}: ") + f"{counts}.\n\n"
    stopped = show_for_terminal(f"\nNothing more begins: {summary.stopped}\n") if summary.stopped else ""
    return f"{head}{table}{stopped}"


def render_json(summary: Summary) -> str:
    """The counts and all rows as one JSON object."""
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
