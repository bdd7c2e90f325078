"""The result of a rebase: its conflicts, whether they are resolved, and the text of its report. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.changes.artifacts import MAX_PATH
from runner.characters import make_storable, show_path
from runner.model.job import FileChange, Job, Report
from runner.model.jobd_answers import JobdError

MAX_CONFLICTS = 10_000
MAX_NAMED = 10
"""How many paths a sentence names."""

_MARKER = re.compile(rb"^(?:<{7}|\|{7}|>{7})(?: |\r?$)", re.MULTILINE)
"""The lines that git writes around a conflict. The line between the sides is left out, because it may be a heading."""

_DISPLACED = re.compile(r"~(?:onto|change)(?:_\d+)?$")
"""The end of a path that git invented because the real one was taken (`runner/jobd/environment/merge`)."""


def read_conflicts(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The conflicting paths in a machine's answer. Raises `JobdError` if they are invalid."""
    found = result.get("conflicts")
    if not isinstance(found, list) or len(found) > MAX_CONFLICTS or not all(map(_is_path, found)):
        raise JobdError("internal", "the machine did not say which files are in conflict")
    return tuple(map(make_storable, found))


def _is_path(path: Any) -> bool:
    return isinstance(path, str) and 0 < len(path) <= MAX_PATH


def find_unresolved(job: Job, changes: Iterable[FileChange]) -> tuple[str, ...]:
    """The conflicting paths that are still unresolved: they have a marker, or a name that git invented."""
    conflicts = set(job.conflicts or ())
    present = [change for change in changes if change.path in conflicts and change.content is not None]
    return tuple(
        change.path for change in present if _MARKER.search(change.content or b"") or _DISPLACED.search(change.path)
    )


def refuse_unresolved(job: Job, report: Report) -> Report:
    """The report; its diff cannot be approved while a conflict is visible in it."""
    left = find_unresolved(job, report.changes)
    if not left:
        return report
    return replace(report, digest=None, refusals=(*report.refusals, f"conflicts are left in {name_paths(left)}"))


def tell_rebased(job: Job, report: Report, earlier: Job, before: Report) -> Report:
    """The report of a rebase, marked as one. Without an agent, it has the texts of the earlier attempt."""
    onto = f"`{(job.base_commit or '')[:10]}` of `{job.base_branch}`"
    moved = f"rebased from `{(earlier.base_commit or '')[:10]}` onto {onto}"
    if job.conflicts:
        met = f"{moved}: conflicts in {name_paths(job.conflicts)} were left to the agent"
        return refuse_unresolved(job, replace(report, warnings=(met, *report.warnings)))
    if not report.changes:
        nothing = f"{onto} already contains all changes of attempt {earlier.attempt}"
        return replace(report, body=f"## Summary\n\n{nothing}: no diff is left.\n")
    clean = f"{moved} without conflicts, by git alone: the report's texts are those of attempt {earlier.attempt}"
    return replace(
        report,
        body=before.body,
        worklog=before.worklog,
        pr_title=before.pr_title,
        repro=before.repro,
        warnings=(clean, *report.warnings),
    )


def name_paths(paths: Sequence[str]) -> str:
    """The first paths by name, and the number of the others."""
    more = len(paths) - MAX_NAMED
    return ", ".join(map(show_path, paths[:MAX_NAMED])) + (f" and {more} more" if more > 0 else "")
